//! Standard output.

pub mod table;

use crate::problem::Problem;
use serde::Serialize;
use std::io::{self, IsTerminal, Write};
use textwrap::core::Word;
use textwrap::{Options, WordSeparator, WordSplitter};

/// Columns if standard output is not a terminal.
const COLUMNS: usize = 100;
/// Further indentation of the second and later lines of a wrapped line.
const HANGING: usize = 4;
/// Clears the terminal and goes to its first line (ECMA-48 CUP and ED).
const CLEAR: &str = "\x1b[H\x1b[2J\x1b[3J";

/// Columns of standard output.
pub fn columns() -> usize {
    let size = terminal_size::terminal_size_of(io::stdout());
    size.map_or(COLUMNS, |(terminal_size::Width(columns), _)| usize::from(columns))
}

/// Wraps each line of `text` at `width` columns, indenting its continuation. Does not split names,
/// or figures from their units.
pub fn wrapped(text: &str, width: usize) -> String {
    let line = |line: &str| {
        let indent = line.chars().take_while(|c| *c == ' ').count();
        hanging(line, indent + HANGING, width) + "\n"
    };
    text.lines().map(line).collect()
}

/// Wraps `line` at `width` columns as [`wrapped`] does, its continuation indented by `indent`.
pub fn hanging(line: &str, indent: usize, width: usize) -> String {
    let hanging = " ".repeat(indent);
    let options = Options::new(width)
        .subsequent_indent(&hanging)
        .break_words(false)
        .word_separator(WordSeparator::Custom(words_with_units))
        .word_splitter(WordSplitter::NoHyphenation);
    textwrap::wrap(line, options).join("\n")
}

/// Splits `line` at its blanks, except after figures.
fn words_with_units(line: &str) -> Box<dyn Iterator<Item = Word<'_>> + '_> {
    let is_figure = |before: &str| {
        let word = before.rsplit(' ').next().unwrap_or(before);
        word.trim_start_matches('(').parse::<f64>().is_ok()
    };
    let blanks = line.match_indices(' ').map(|(at, _)| at);
    let ends = blanks.filter(move |at| !is_figure(&line[..*at])).map(|at| at + 1);
    let words = ends.chain([line.len()]).scan(0, |start, end| {
        let word = &line[*start..end];
        *start = end;
        Some(Word::from(word))
    });
    Box::new(words)
}

/// Joins the lines of each paragraph in the epilogues of a command and of its subcommands, so that
/// clap wraps them at the terminal's width. Indented lines, such as examples, are kept.
pub fn with_flowing_epilogues(mut command: clap::Command) -> clap::Command {
    if let Some(epilogue) = command.get_after_help().map(ToString::to_string) {
        command = command.after_help(flowing(&epilogue));
    }
    command.mut_subcommands(with_flowing_epilogues)
}

fn flowing(text: &str) -> String {
    let mut flowing = String::new();
    let mut before = "";
    for line in text.lines() {
        let is_text = |line: &str| !line.is_empty() && !line.starts_with(' ');
        let continues = is_text(before) && is_text(line) && !before.ends_with(':');
        flowing.push_str(match (flowing.is_empty(), continues) {
            (true, _) => "",
            (_, true) => " ",
            (_, false) => "\n",
        });
        flowing.push_str(line);
        before = line;
    }
    flowing
}

/// Prints one of a series of texts that replace each other on a terminal. Elsewhere `rule`, a line,
/// separates them.
pub fn repaint(text: &str, is_first: bool, rule: &str) -> Result<(), Problem> {
    match (io::stdout().is_terminal(), is_first) {
        (true, _) => print(&format!("{CLEAR}{text}")),
        (false, true) => print(text),
        (false, false) => print(&format!("{rule}\n{text}")),
    }
}

/// Prints `text`. A closed output is not an error.
pub fn print(text: &str) -> Result<(), Problem> {
    print_bytes(text.as_bytes())
}

/// Prints `bytes`, which may be no text. A closed output is not an error.
pub fn print_bytes(bytes: &[u8]) -> Result<(), Problem> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
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

/// Formats as JSON on one line.
pub fn to_line(value: &impl Serialize) -> Result<String, Problem> {
    serde_json::to_string(value)
        .map(|line| line + "\n")
        .map_err(|e| Problem::plain(format!("cannot write JSON: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boxes::top;
    use crate::{counters, sim};
    use std::collections::HashSet;

    #[test]
    fn lines_of_a_status_are_wrapped_between_figures() {
        let text = "pair one\n  store: 1.5 MiB of 16.0 MiB in 3 flows; 5 pseudo-ACKs (2 late)\n";
        let wrapped_at = |width| wrapped(text, width);
        assert_eq!(
            wrapped_at(30),
            "pair one\n  store: 1.5 MiB of 16.0 MiB\n      in 3 flows;\n      5 pseudo-ACKs \
             (2 late)\n"
        );
        // There is no space for "16.0 MiB" or "5 pseudo-ACKs".
        assert_eq!(
            wrapped_at(26),
            "pair one\n  store: 1.5 MiB of\n      16.0 MiB in 3 flows;\n      5 pseudo-ACKs\n      \
             (2 late)\n"
        );
    }

    #[test]
    fn every_figure_is_whole_or_visibly_cut_at_any_width() {
        let status = |width| wrapped(&top::tests::status(), width);
        let (top, counters) = (|width| top::tests::view(width, 40), counters::tests::view);
        let sim = sim::text::tests::view();
        let views: [(&str, &dyn Fn(usize) -> String); 4] =
            [("top", &top), ("status", &status), ("counters", &counters), ("sim", &sim)];
        for (name, view) in views {
            let wide = view(250);
            let known: HashSet<&str> = wide.split_whitespace().collect();
            for width in [80, 100, 140] {
                let text = view(width);
                for line in text.lines() {
                    assert!(textwrap::core::display_width(line) <= width, "{name}:\n{text}");
                }
                for word in text.split_whitespace().filter(|word| !word.contains('─')) {
                    let is_whole = known.contains(word);
                    assert!(is_whole || word.ends_with('…'), "{name}, {width}, {word}:\n{text}");
                }
            }
        }
    }

    #[test]
    fn a_wrapped_status_leaves_nothing_out() {
        let text = top::tests::status();
        for width in [80, 100, 140] {
            assert!(wrapped(&text, width).split_whitespace().eq(text.split_whitespace()));
        }
    }

    #[test]
    fn paragraphs_of_an_epilogue_flow_and_examples_stay() {
        let text = "Examples:\n  one\n  two\n\nThe whole file\nis read.\nKeys:\n  q  quit";
        let flowing = "Examples:\n  one\n  two\n\nThe whole file is read. Keys:\n  q  quit";
        assert_eq!(super::flowing(text), flowing);
    }
}
