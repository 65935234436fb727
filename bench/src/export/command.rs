//! The command line of a run.

use crate::record::Record;

/// Words of a command.
pub(super) struct Command<'a>(Vec<&'a str>);

impl<'a> Command<'a> {
    /// That of a record; `None` if it has none.
    pub fn of(record: &'a Record) -> Option<Self> {
        let words: Vec<&str> = record.provenance.as_ref()?.command.split_whitespace().collect();
        (!words.is_empty()).then_some(Command(words))
    }

    /// Name of the program, without its directory.
    pub fn program(&self) -> &'a str {
        self.0[0].rsplit('/').next().unwrap_or(self.0[0])
    }

    /// True if one of `options` is given.
    pub fn has(&self, options: &[&str]) -> bool {
        self.0.iter().any(|word| options.contains(word))
    }

    /// Value of the first of `options` that is given, as `-o VALUE` or `--option=VALUE`.
    pub fn value(&self, options: &[&str]) -> Option<&'a str> {
        self.0.iter().enumerate().find_map(|(at, word)| match word.split_once('=') {
            Some((option, value)) if options.contains(&option) => Some(value),
            _ if options.contains(word) => self.0.get(at + 1).copied(),
            _ => None,
        })
    }

    /// Value of an option that is a whole number.
    pub fn number(&self, options: &[&str]) -> Option<u64> {
        self.value(options)?.parse().ok()
    }
}
