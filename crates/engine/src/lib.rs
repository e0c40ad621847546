//! One node without its input and output: flows, stages, policy, budgets, reasons.
