"""The best number of draft tokens, method and schedule for one machine and workload, from few launches."""
