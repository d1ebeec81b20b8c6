"""The store on etcd; of the package etcd3 it uses the messages."""
