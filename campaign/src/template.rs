//! Commands with placeholders: `ib_write_bw -s {message_bytes}`.

use std::fmt::Write as _;
use thiserror::Error;

/// Words of a command, split as a shell does, with placeholders in braces. `{{` is a brace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    text: String,
    words: Vec<Vec<Piece>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Name(String),
}

/// Why a text is not a command.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TemplateError {
    /// It has no word.
    #[error("the command is empty")]
    Empty,
    /// A quote or a backslash at the end.
    #[error("a quote of the command is not closed")]
    Quote,
    /// A brace without its partner.
    #[error("'{0}' has a brace without its partner: write '{{{{' for a brace of the command")]
    Brace(String),
}

impl Template {
    /// Parses a command.
    ///
    /// # Errors
    /// It is empty, or a quote or brace is not closed.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        let words = shlex::split(text).ok_or(TemplateError::Quote)?;
        if words.is_empty() {
            return Err(TemplateError::Empty);
        }
        let words = words.iter().map(|word| pieces(word)).collect::<Result<_, _>>()?;
        Ok(Template { text: text.to_owned(), words })
    }

    /// The same command with `words` inserted, the first of them at `at`.
    ///
    /// # Errors
    /// As [`Template::parse`].
    pub fn insert(mut self, at: usize, words: &[&str]) -> Result<Self, TemplateError> {
        for (offset, word) in words.iter().enumerate() {
            let at = (at + offset).min(self.words.len());
            self.words.insert(at, pieces(word)?);
            let _ = write!(self.text, " {word}");
        }
        Ok(self)
    }

    /// The same command with `words` at its end.
    ///
    /// # Errors
    /// As [`Template::parse`].
    pub fn append(self, words: &[&str]) -> Result<Self, TemplateError> {
        let end = self.words.len();
        self.insert(end, words)
    }

    /// Its text; identifies the command.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Names of its placeholders.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.words.iter().flatten().filter_map(|piece| match piece {
            Piece::Name(name) => Some(name.as_str()),
            Piece::Text(_) => None,
        })
    }

    /// True if it has the placeholder `name`.
    pub fn has(&self, name: &str) -> bool {
        self.names().any(|known| known == name)
    }

    /// True if one of its words is `word`.
    pub fn has_word(&self, word: &str) -> bool {
        self.words.iter().any(|pieces| matches!(&pieces[..], [Piece::Text(text)] if text == word))
    }

    /// The word at `at`, if it has no placeholder.
    pub fn word(&self, at: usize) -> Option<&str> {
        match self.words.get(at).map(Vec::as_slice) {
            Some([Piece::Text(text)]) => Some(text),
            _ => None,
        }
    }

    /// The words, with `value` for each placeholder. A word that is nothing but placeholders
    /// without a value is left out.
    pub fn fill<'a>(&self, value: impl Fn(&str) -> Option<&'a str>) -> Vec<String> {
        let word = |pieces: &Vec<Piece>| {
            let text = pieces.iter().map(|piece| match piece {
                Piece::Text(text) => text.as_str(),
                Piece::Name(name) => value(name).unwrap_or_default(),
            });
            let word: String = text.collect();
            let has_text = pieces.iter().any(|piece| matches!(piece, Piece::Text(_)));
            (has_text || !word.is_empty()).then_some(word)
        };
        self.words.iter().filter_map(word).collect()
    }
}

/// The text and placeholders of a word.
fn pieces(word: &str) -> Result<Vec<Piece>, TemplateError> {
    let unpaired = || TemplateError::Brace(word.to_owned());
    let (mut pieces, mut text, mut rest) = (Vec::new(), String::new(), word);
    while let Some(at) = rest.find(['{', '}']) {
        let (before, from) = rest.split_at(at);
        text += before;
        if let Some(after) = from.strip_prefix("{{").or_else(|| from.strip_prefix("}}")) {
            text.push_str(&from[..1]);
            rest = after;
            continue;
        }
        let inner = from.strip_prefix('{').ok_or_else(unpaired)?;
        let (name, after) = inner.split_once('}').ok_or_else(unpaired)?;
        if name.is_empty() || name.contains('{') {
            return Err(unpaired());
        }
        if !text.is_empty() {
            pieces.push(Piece::Text(std::mem::take(&mut text)));
        }
        pieces.push(Piece::Name(name.to_owned()));
        rest = after;
    }
    text += rest;
    if !text.is_empty() || pieces.is_empty() {
        pieces.push(Piece::Text(text));
    }
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_filled_after_words_are_split() {
        let command = Template::parse("sh -c 'echo {a}' x{a}-{b} {{c}}").unwrap();
        assert_eq!(command.names().collect::<Vec<_>>(), ["a", "a", "b"]);
        let words = command.fill(|name| if name == "a" { Some("1 2") } else { Some("3") });
        assert_eq!(words, ["sh", "-c", "echo 1 2", "x1 2-3", "{c}"]);
        assert!(command.has_word("sh") && command.word(2).is_none());
        let command = Template::parse("x {a} -{a} '' {a}{b}").unwrap();
        assert_eq!(command.fill(|_| None), ["x", "-", ""]);
    }

    #[test]
    fn words_are_inserted_and_appended() {
        let command = Template::parse("qperf -t 1 rc_bw").unwrap();
        let command = command.insert(1, &["-lp", "{port}"]).unwrap().append(&["x"]).unwrap();
        assert_eq!(command.fill(|_| Some("7")), ["qperf", "-lp", "7", "-t", "1", "rc_bw", "x"]);
    }

    #[test]
    fn what_is_no_command_is_refused() {
        let refused = |text: &str| Template::parse(text).unwrap_err();
        assert_eq!([refused(""), refused("  ")], [TemplateError::Empty, TemplateError::Empty]);
        assert_eq!(refused("sh 'x"), TemplateError::Quote);
        for text in ["a {b", "a b}", "a {}", "a {b{c}}"] {
            assert!(matches!(refused(text), TemplateError::Brace(_)), "{text}");
        }
    }
}
