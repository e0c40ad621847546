//! Network namespaces, real servers and clients, captures, campaigns and reports.

pub mod link;
