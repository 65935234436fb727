//! What rules and changes have in common as text: words, their places, numbers.

use longhaul_units::{BitRate, Duration};
use std::ops::RangeInclusive;
use std::str::FromStr;
use thiserror::Error;

/// Text that is no rule, or no change.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("'{text}', character {place}: {why}")]
pub struct TextError {
    /// All that was written.
    pub text: String,
    /// Where it goes wrong: a character, counted from 1.
    pub place: usize,
    /// What is wrong there, and what to write instead.
    pub why: String,
}

/// A word and where it begins, in bytes from the start of the text.
#[derive(Clone, Copy)]
pub(crate) struct Word<'a> {
    pub text: &'a str,
    at: usize,
}

/// Words between spaces and commas.
pub(crate) struct Words<'a> {
    /// All that was written.
    text: &'a str,
    at: usize,
    end: usize,
}

fn is_between(c: char) -> bool {
    c.is_whitespace() || c == ','
}

impl<'a> Words<'a> {
    /// Of a part of `text`, in bytes.
    pub fn new(text: &'a str, part: std::ops::Range<usize>) -> Self {
        Words { text, at: part.start, end: part.end }
    }

    /// The word that has to be there.
    ///
    /// # Errors
    /// With `why`, at the end, when there is none.
    pub fn expect(&mut self, why: &str) -> Result<Word<'a>, TextError> {
        self.next().ok_or_else(|| self.error_at(self.end, why))
    }

    /// The next word as a value.
    ///
    /// # Errors
    /// When there is none, or it is no such value: with `why`.
    pub fn value<T: FromStr>(&mut self, why: &str) -> Result<T, TextError> {
        let word = self.expect(why)?;
        word.text.parse().map_err(|_| self.error(word, why))
    }

    /// An error at `word`.
    pub fn error(&self, word: Word<'_>, why: impl Into<String>) -> TextError {
        self.error_at(word.at, why)
    }

    /// An error at this byte.
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

/// A whole number, decimal or with 0x.
pub(crate) fn whole(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// A number, or two with a dash between them.
pub(crate) fn whole_range(text: &str) -> Option<RangeInclusive<u64>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(whole(first)?..=whole(last)?)
}

/// A probability, `1e-3` or `0.1%`.
pub(crate) fn probability(text: &str) -> Option<f64> {
    let (number, scale) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    let number = number.parse::<f64>().ok()? / scale;
    (0.0..=1.0).contains(&number).then_some(number)
}

/// A time, or two with a dash between them; the first may leave its unit to the second.
pub(crate) fn times(text: &str) -> Option<RangeInclusive<Duration>> {
    let Some((first, last)) = text.split_once('-') else {
        let time = text.parse().ok()?;
        return Some(time..=time);
    };
    let unit = last.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let first = first.parse().or_else(|_| format!("{first}{unit}").parse()).ok()?;
    Some(first..=last.parse().ok()?)
}

/// A time as one word.
pub(crate) fn time_text(time: Duration) -> String {
    time.to_string().replace(' ', "").replace('µ', "u")
}

/// A rate as one word.
pub(crate) fn rate_text(rate: BitRate) -> String {
    let bps = rate.as_bps();
    match bps {
        _ if bps.is_multiple_of(1_000_000_000) => format!("{}G", bps / 1_000_000_000),
        _ if bps.is_multiple_of(1_000_000) => format!("{}M", bps / 1_000_000),
        _ => bps.to_string(),
    }
}
