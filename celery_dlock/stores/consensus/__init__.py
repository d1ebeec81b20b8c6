"""What etcd and ZooKeeper have in common: compare-and-set, with the rules run by whoever asks."""
