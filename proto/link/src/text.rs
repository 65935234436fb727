//! Parsing common to rules and changes: words, positions, numbers.

use longhaul_units::{BitRate, Duration};
use std::ops::RangeInclusive;
use std::str::FromStr;
use thiserror::Error;

/// Text that is not a valid rule or change.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("'{text}', character {place}: {why}")]
pub struct TextError {
    /// The whole text.
    pub text: String,
    /// Position of the error: a character, counted from 1.
    pub place: usize,
    /// The problem, and its remedy.
    pub why: String,
}

/// A word and its position, in bytes from the start of the text.
#[derive(Clone, Copy)]
pub(crate) struct Word<'a> {
    pub text: &'a str,
    at: usize,
}

/// Words separated by spaces and commas.
pub(crate) struct Words<'a> {
    /// The whole text.
    text: &'a str,
    at: usize,
    end: usize,
}

fn is_between(c: char) -> bool {
    c.is_whitespace() || c == ','
}

impl<'a> Words<'a> {
    /// Words of a part of `text`, in bytes.
    pub fn new(text: &'a str, part: std::ops::Range<usize>) -> Self {
        Words { text, at: part.start, end: part.end }
    }

    /// Returns the next word, which is required.
    ///
    /// # Errors
    /// At the end of the text, with `why`, if there is none.
    pub fn expect(&mut self, why: &str) -> Result<Word<'a>, TextError> {
        self.next().ok_or_else(|| self.error_at(self.end, why))
    }

    /// Parses the next word.
    ///
    /// # Errors
    /// If there is none or it does not parse, with `why`.
    pub fn value<T: FromStr>(&mut self, why: &str) -> Result<T, TextError> {
        let word = self.expect(why)?;
        word.text.parse().map_err(|_| self.error(word, why))
    }

    /// An error at `word`.
    pub fn error(&self, word: Word<'_>, why: impl Into<String>) -> TextError {
        self.error_at(word.at, why)
    }

    /// An error at a byte position.
    pub fn error_at(&self, at: usize, why: impl Into<String>) -> TextError {
        let place = self.text[..at].chars().count() + 1;
        TextError { text: self.text.to_owned(), place, why: why.into() }
    }
}

impl<'a> Iterator for Words<'a> {
    type Item = Word<'a>;

    fn next(&mut self) -> Option<Word<'a>> {
        let rest = &self.text[self.at..self.end];
        let start = rest.find(|c| !is_between(c))?;
        let len = rest[start..].find(is_between).unwrap_or(rest.len() - start);
        let word = Word { text: &rest[start..start + len], at: self.at + start };
        self.at += start + len;
        Some(word)
    }
}

/// Parses a whole number, decimal or with 0x.
pub(crate) fn whole(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Parses a number, or two separated by a dash.
pub(crate) fn whole_range(text: &str) -> Option<RangeInclusive<u64>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(whole(first)?..=whole(last)?)
}

/// Parses a time, or two separated by a dash; the first may omit its unit.
pub(crate) fn times(text: &str) -> Option<RangeInclusive<Duration>> {
    let Some((first, last)) = text.split_once('-') else {
        let time = text.parse().ok()?;
        return Some(time..=time);
    };
    let unit = last.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let first = first.parse().or_else(|_| format!("{first}{unit}").parse()).ok()?;
    Some(first..=last.parse().ok()?)
}

/// Formats a time as one word.
pub(crate) fn time_text(time: Duration) -> String {
    time.to_string().replace(' ', "").replace('µ', "u")
}

/// Formats a rate as one word.
pub(crate) fn rate_text(rate: BitRate) -> String {
    let bps = rate.as_bps();
    match bps {
        _ if bps.is_multiple_of(1_000_000_000) => format!("{}G", bps / 1_000_000_000),
        _ if bps.is_multiple_of(1_000_000) => format!("{}M", bps / 1_000_000),
        _ => bps.to_string(),
    }
}
