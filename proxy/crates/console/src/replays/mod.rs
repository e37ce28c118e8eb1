//! The results of replays, and their comparisons, as text, JSON and HTML.

mod html;
mod text;

use std::{
    fs::File,
    io::{BufReader, Read as _, Result},
    path::Path,
};

use seawall_capture::recorder::RecorderReader;
use seawall_replay::{Choice, Comparison, Report, ShapeId, Source, captured_results};
use serde::Serialize;

pub use self::text::summary;
pub(crate) use self::{html::comparison as html, text::comparison as text};

/// Formats a report or a comparison as indented JSON, with a line break at its end.
///
/// # Errors
/// If a value cannot be represented in JSON.
pub fn json(document: &impl Serialize) -> serde_json::Result<String> {
    serde_json::to_string_pretty(document).map(|text| text + "\n")
}

/// True if the path is a capture: a directory, standard input, or a file that begins like a file of
/// a capture or like a file of mongod's traffic recorder.
pub(crate) fn is_capture(path: &Path) -> bool {
    path.is_dir()
        || path.as_os_str() == "-"
        || begins_as_part(path).unwrap_or(false)
        || begins_as_recording(path).unwrap_or(false)
}

fn begins_as_part(path: &Path) -> Result<bool> {
    let mut head = [0; 8];
    File::open(path)?.read_exact(&mut head)?;
    Ok(seawall_capture::is_capture(&head))
}

fn begins_as_recording(path: &Path) -> Result<bool> {
    Ok(RecorderReader::new(BufReader::new(File::open(path)?)).is_ok())
}

/// The results that a capture contains for the operations that the replay `now` sent.
pub(crate) fn capture(path: &Path, now: &Report) -> std::result::Result<Report, String> {
    let source = Source::open(path).map_err(|error| error.to_string())?;
    let only = now.settings.only.iter();
    let choice = Choice {
        with_writes: now.settings.with_writes,
        only: only.filter_map(|id| ShapeId::from_hex(id)).collect(),
    };
    Ok(captured_results(source, &choice, now.settings.digest))
}

/// One text about all shapes whose slowdown exceeds the limit of `--fail-if-slower`; `None` if
/// there is no such shape.
pub(crate) fn missed(comparison: &Comparison) -> Option<String> {
    let shapes = comparison.missed.iter().map(|missed| {
        let name = text::name(&missed.shape);
        format!("{name}: median {:.2} times as long as before", missed.ratio)
    });
    let shapes: Vec<_> = shapes.collect();
    (!shapes.is_empty()).then(|| format!("objectives missed: {}", shapes.join("; ")))
}
