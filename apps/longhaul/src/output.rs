//! Standard output.

use crate::problem::Problem;
use std::io::{self, Write};

/// Prints `text`. A reader who has gone wants no more of it.
pub fn print(text: &str) -> Result<(), Problem> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(Problem::plain(format!("cannot print the result: {e}")))
        }
        _ => Ok(()),
    }
}
