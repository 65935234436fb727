//! Errors at the command line: one line with cause and remedy.

mod cures;

use longhaul_boxes::number::NumberError;
use std::error::Error;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::num::{IntErrorKind, ParseFloatError, ParseIntError};
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

impl Error for Problem {}

/// Attaches each negative value to the option before it: `--rate -5G` becomes `--rate=-5G`.
pub fn with_negative_values(arguments: Vec<OsString>) -> Vec<OsString> {
    let is_option =
        |text: &[u8]| text.len() > 2 && text.starts_with(b"--") && !text.contains(&b'=');
    let is_negative =
        |text: &[u8]| matches!(text, [b'-', first, ..] if first.is_ascii_digit() || *first == b'.');
    let mut attached: Vec<OsString> = Vec::new();
    let mut is_literal = false;
    for argument in arguments {
        is_literal |= argument == "--";
        match attached.last_mut() {
            Some(option)
                if !is_literal
                    && is_option(option.as_encoded_bytes())
                    && is_negative(argument.as_encoded_bytes()) =>
            {
                option.push("=");
                option.push(argument);
            }
            _ => attached.push(argument),
        }
    }
    attached
}

/// The command-line parser's error on one line.
pub fn of_command_line(error: &clap::Error) -> String {
    let line = on_one_line(&error.to_string());
    let reworded = error.source().and_then(|source| {
        let start = line.strip_suffix(&source.to_string())?;
        Some(format!("{start}{}", of_number(source)?))
    });
    reworded.unwrap_or(line)
}

/// Rewords an error of the standard library's numbers, or of those of a range.
fn of_number(error: &(dyn Error + 'static)) -> Option<String> {
    if let Some(error) = error.downcast_ref::<ParseIntError>() {
        return Some(match error.kind() {
            IntErrorKind::PosOverflow => "the number is too large".to_string(),
            IntErrorKind::NegOverflow => "the number is too small".to_string(),
            _ => "not a whole number, 0 or above".to_string(),
        });
    }
    if error.is::<ParseFloatError>() {
        return Some("not a number".to_string());
    }
    match error.downcast_ref::<NumberError>()? {
        NumberError::Text(error) => of_number(error),
        NumberError::Outside { range, .. } if *range.end() == u64::MAX => {
            Some(format!("must be at least {}", range.start()))
        }
        NumberError::Outside { range, .. } => {
            Some(format!("must be from {} to {}", range.start(), range.end()))
        }
    }
}

/// The command-line parser's message, cause and tip, without its usage text.
fn on_one_line(message: &str) -> String {
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
    use longhaul_boxes::number::{at_least, within};
    use std::ffi::OsStr;

    #[test]
    fn numbers_are_refused_in_words() {
        let command = clap::Command::new("x").args([
            clap::Arg::new("seed").long("seed").value_parser(clap::value_parser!(u64)),
            clap::Arg::new("from").long("from").value_parser(at_least(1)),
            clap::Arg::new("jobs").long("jobs").value_parser(within::<u16>(1..=8)),
            clap::Arg::new("share").long("share").value_parser(clap::value_parser!(f64)),
        ]);
        let refused = |argument: &str| {
            let parsed = command.clone().try_get_matches_from(["x", argument]);
            of_command_line(&parsed.unwrap_err())
        };
        for (argument, told) in [
            ("--seed=abc", "not a whole number, 0 or above"),
            ("--seed=-1", "not a whole number, 0 or above"),
            ("--seed=99999999999999999999", "the number is too large"),
            ("--from=0", "must be at least 1"),
            ("--jobs=10", "must be from 1 to 8"),
            ("--jobs=70000", "must be from 1 to 8"),
            ("--jobs=two", "not a whole number, 0 or above"),
            ("--share=a", "not a number"),
        ] {
            let (name, value) = argument.split_once('=').unwrap();
            let expected = format!("invalid value '{value}' for '{name} <{}>': {told}", &name[2..]);
            assert_eq!(refused(argument), expected);
        }
    }

    #[test]
    fn negative_values_belong_to_the_option_before_them() {
        let attached = |line: &str| {
            let words = line.split(' ').map(OsString::from).collect();
            with_negative_values(words).join(OsStr::new(" ")).into_string().unwrap()
        };
        assert_eq!(attached("x --rate -5G --seed -1"), "x --rate=-5G --seed=-1");
        for line in ["x -1 --rate=5G -2", "x --rate --seed", "x -- --size -1", "x --rate -v -5"] {
            assert_eq!(attached(line), line);
        }
    }

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
