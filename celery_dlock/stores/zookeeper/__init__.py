"""The store on ZooKeeper, by kazoo."""
