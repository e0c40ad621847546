//! Reports for people and programs: a table, a JSON document, one HTML file.
//!
//! All three are made from [`ResultRow`]s, and these from the raw samples by one rule: the median
//! of the repeats. Every figure of a report is in the result file or computed from it here.

mod html;
mod json;
mod plots;
pub mod published;
mod rows;
mod table;

pub use html::html;
pub use json::json;
pub use rows::{ResultRow, TransferFigures, rows, sums};
pub use table::table;
