"""The best number of draft tokens for one machine and workload, from few launches."""
