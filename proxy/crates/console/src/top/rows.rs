//! The table of shapes as strings, for the terminal and for plain output.

use super::model::Model;
use crate::figures::{bytes, count, float, millis, namespace, percent, printable};
use seawall_api::{Shape, Sort};

/// The headings with their sort keys. `<` aligns a column to the left.
pub(super) const HEADINGS: [(&str, Option<Sort>); 11] = [
    ("share", Some(Sort::TotalTime)),
    ("count/s", Some(Sort::Count)),
    ("p50", None),
    ("p99", Some(Sort::P99)),
    ("longest", None),
    ("errors", Some(Sort::Errors)),
    ("bytes", Some(Sort::Bytes)),
    ("docs", Some(Sort::Documents)),
    ("<command", None),
    ("<namespace", None),
    ("<shape", None),
];

/// The width of each column in the terminal, in characters. A column of width 0 takes the remaining
/// width.
pub(super) const WIDTHS: [u16; 11] = [7, 7, 7, 7, 7, 6, 8, 6, 13, 24, 0];

/// The rows of the table, one per shape.
pub(super) fn shapes(model: &Model) -> Vec<Vec<String>> {
    let total_ms = model.shapes.load_ms();
    let row = |shape: &&Shape| {
        vec![
            percent(shape.load_ms(), total_ms),
            count(model.rate_of(shape)),
            millis(shape.latency_ms.p50),
            millis(shape.latency_ms.p99),
            millis(shape.latency_ms.max),
            count(float(shape.errors)),
            bytes(float(shape.bytes())),
            count(float(shape.documents)),
            printable(&shape.command),
            namespace(&shape.db, &shape.collection),
            printable(&shape.shape),
        ]
    };
    model.rows().iter().map(row).collect()
}
