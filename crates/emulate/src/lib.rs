//! Link models: rate, delay, loss and queues, in whatever time they are handed.
