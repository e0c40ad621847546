//! The frames on a link.
