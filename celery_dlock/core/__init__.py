"""The rules, without a clock and without a store; and above them what takes, renews and frees."""
