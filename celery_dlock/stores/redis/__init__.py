"""The stores on Redis: one server, Sentinel's, a cluster. The rules run there, in Lua."""
