//! Standard output.

use crate::problem::Problem;
use serde::Serialize;
use std::io::{self, Write};

/// Prints `text`. A closed output is not an error.
pub fn print(text: &str) -> Result<(), Problem> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(Problem::plain(format!("cannot print the result: {e}")))
        }
        _ => Ok(()),
    }
}

/// Formats as indented JSON.
pub fn to_json(value: &impl Serialize) -> Result<String, Problem> {
    serde_json::to_string_pretty(value)
        .map_err(|e| Problem::plain(format!("cannot write JSON: {e}")))
}
