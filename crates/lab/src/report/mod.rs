//! Reports for people and programs: a table, a JSON document, a CSV of cells, one HTML file.
//!
//! All of them are made from [`ResultRow`]s, and these from the raw samples by one rule: the median
//! of the repeats. Every figure of a report is in the result file or computed from it here.

mod campaign_csv;
mod campaign_html;
mod campaign_json;
mod campaign_table;
mod file_set_html;
mod horizontal_bars;
mod html;
mod json;
mod lines;
mod plots;
pub mod published;
mod rows;
pub mod statistics;
mod table;
mod tables;

pub use campaign_csv::campaign_csv;
pub use campaign_html::campaign_html;
pub use campaign_json::campaign_json;
pub use campaign_table::campaign_table;
pub use html::html;
pub use json::json;
pub use rows::{DocumentTimes, ResultRow, TransferFigures, document_times, rows, sums};
pub use table::table;
