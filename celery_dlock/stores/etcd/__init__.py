"""The store on etcd; of the package etcd3, or of one in its place, it uses the messages."""
