//! Errors at the command line: one line with cause and remedy.

mod cures;

use std::fmt;
use std::io;
use std::path::Path;

/// A cause and its remedy.
#[derive(Debug)]
pub struct Problem {
    cause: String,
    cure: Option<String>,
}

impl Problem {
    /// A problem with a remedy.
    pub fn new(cause: impl Into<String>, cure: impl Into<String>) -> Self {
        Problem { cause: cause.into(), cure: Some(cure.into()) }
    }

    /// A problem without a remedy.
    pub fn plain(cause: impl Into<String>) -> Self {
        Problem { cause: cause.into(), cure: None }
    }

    /// An operating system error on `path` while trying to `action` it.
    pub fn io(action: &str, path: &Path, error: &io::Error) -> Self {
        Problem::plain(format!("cannot {action} {}: {error}", path.display()))
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cure {
            Some(cure) => write!(f, "{}; {cure}", self.cause),
            None => f.write_str(&self.cause),
        }
    }
}

impl std::error::Error for Problem {}

/// The command-line parser's message, cause and tip, without its usage text.
pub fn on_one_line(message: &str) -> String {
    let lines = message.lines().map(str::trim).filter(|line| !line.is_empty());
    let telling =
        lines.take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more info"));
    let mut line = String::new();
    for part in telling {
        let between = match part {
            _ if line.is_empty() => "",
            _ if line.ends_with(':') => " ",
            _ => "; ",
        };
        line.push_str(between);
        line.push_str(part);
    }
    line.strip_prefix("error: ").unwrap_or(&line).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parsers_messages_become_one_line() {
        let typo = "error: unexpected argument '--dist' found\n\
                    \n  tip: a similar argument exists: '--distance'\n\n\
                    Usage: longhaul lab up --distance <DISTANCE>\n\n\
                    For more information, try '--help'.\n";
        let line =
            "unexpected argument '--dist' found; tip: a similar argument exists: '--distance'";
        assert_eq!(on_one_line(typo), line);
        let missing = "error: the following required arguments were not provided:\n  \
                       --host <HOST>\n\nUsage: x\n";
        let line = "the following required arguments were not provided: --host <HOST>";
        assert_eq!(on_one_line(missing), line);
    }
}
