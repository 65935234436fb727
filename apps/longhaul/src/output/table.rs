//! Tables that fit a given width.
//!
//! Figures are never truncated. If the columns of [`lines`] exceed the width, those of the lowest
//! rank are omitted, and words, which are aligned left, end with `…`. [`blocks`] omits no column.

/// A column.
#[derive(Clone, Copy)]
pub struct Column {
    head: &'static str,
    align: Align,
    /// Columns of the lowest rank are omitted first.
    rank: u8,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Align {
    /// Words: may be truncated, to `min` columns.
    Left { min: usize },
    /// Figures, whole or not at all.
    Right,
}

const GAP: &str = "  ";

/// A column of words, which stay readable in `min` columns.
pub const fn words(head: &'static str, rank: u8, min: usize) -> Column {
    Column { head, align: Align::Left { min }, rank }
}

/// A column of figures.
pub const fn figures(head: &'static str, rank: u8) -> Column {
    Column { head, align: Align::Right, rank }
}

/// Formats `rows` below a line of headings. Each row has a text for each column.
pub fn lines<const N: usize>(
    columns: [Column; N],
    rows: &[[String; N]],
    width: usize,
) -> Vec<String> {
    let needed: [usize; N] = std::array::from_fn(|at| {
        let cells = rows.iter().map(|row| length(&row[at]));
        cells.chain([length(columns[at].head)]).max().unwrap_or(0)
    });
    let mut shown: Vec<usize> = (0..N).collect();
    let needed_at_least: [usize; N] = std::array::from_fn(|at| match columns[at].align {
        Align::Left { min } => needed[at].min(min),
        Align::Right => needed[at],
    });
    while shown.len() > 1 && total(shown.iter().map(|at| needed_at_least[*at])) > width {
        let lowest = shown.iter().enumerate().min_by_key(|(_, at)| columns[**at].rank);
        let Some((place, _)) = lowest else { break };
        shown.remove(place);
    }
    let widths = shrink(&shown, needed, needed_at_least, width);
    let line = |cell: &dyn Fn(usize) -> String| {
        let cells: Vec<String> = shown
            .iter()
            .map(|&at| {
                let text = truncate(&cell(at), widths[at]);
                let pad = " ".repeat(widths[at].saturating_sub(length(&text)));
                if columns[at].align == Align::Right { pad + &text } else { text + &pad }
            })
            .collect();
        truncate(cells.join(GAP).trim_end(), width)
    };
    let head = line(&|at| columns[at].head.to_string());
    let body = rows.iter().map(|row| line(&|at| row[at].clone()));
    std::iter::once(head).chain(body).collect()
}

/// Columns to which [`blocks`] may truncate a key.
const KEY_MIN: usize = 8;

/// Formats `rows`, the first of which has the headings, as blocks of as many columns as fit. Each
/// block begins with the first `keys` columns, which say whose the figures are. The first column is
/// aligned left, the others right.
pub fn blocks(rows: &[Vec<String>], keys: usize, width: usize) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let keys = keys.min(columns);
    let needed = |at: usize| rows.iter().map(|row| length(&row[at])).max().unwrap_or(0);
    let mut widths: Vec<usize> = (0..columns).map(needed).collect();
    let (of_keys, of_figures) = widths.split_at_mut(keys);
    let widest = of_figures.iter().max().copied().unwrap_or(0);
    while total(of_keys.iter().copied().chain([widest])) > width
        && let Some(key) = of_keys.iter_mut().max()
        && *key > KEY_MIN
    {
        *key -= 1;
    }
    let mut blocks = Vec::new();
    let mut from = keys;
    while blocks.is_empty() || from < columns {
        let shown = |to: usize| (0..keys).chain(from..to);
        let fits = |to: &usize| total(shown(*to).map(|at| widths[at])) <= width;
        let to = (from + 1..=columns).rev().find(fits).unwrap_or((from + 1).min(columns));
        let line = |row: &Vec<String>| {
            let cells = shown(to).map(|at| {
                let text = truncate(&row[at], widths[at]);
                let pad = " ".repeat(widths[at].saturating_sub(length(&text)));
                if at == 0 { text + &pad } else { pad + &text }
            });
            truncate(cells.collect::<Vec<_>>().join(GAP).trim_end(), width) + "\n"
        };
        blocks.push(rows.iter().map(line).collect::<String>());
        from = to;
    }
    blocks.join("\n")
}

/// Narrows the columns with the most slack until all shown columns fit.
fn shrink<const N: usize>(
    shown: &[usize],
    needed: [usize; N],
    needed_at_least: [usize; N],
    width: usize,
) -> [usize; N] {
    let mut widths = needed;
    while total(shown.iter().map(|at| widths[*at])) > width {
        let spare = |at: usize| widths[at] - needed_at_least[at];
        match shown.iter().max_by_key(|at| spare(**at)) {
            Some(&at) if spare(at) > 0 => widths[at] -= 1,
            _ => break,
        }
    }
    widths
}

fn total(widths: impl Iterator<Item = usize>) -> usize {
    widths.map(|width| width + GAP.len()).sum::<usize>().saturating_sub(GAP.len())
}

fn length(text: &str) -> usize {
    textwrap::core::display_width(text)
}

/// Truncates `text` to `width` columns; truncated text ends with `…`.
pub fn truncate(text: &str, width: usize) -> String {
    if length(text) <= width {
        return text.to_string();
    }
    let mut cut = String::new();
    for character in text.chars() {
        if length(&cut) + length(character.encode_utf8(&mut [0; 4])) + 1 > width {
            break;
        }
        cut.push(character);
    }
    if width > 0 {
        cut.push('…');
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 4] =
        [words("flow", 9, 12), figures("rate", 8), figures("stored", 1), words("state", 5, 10)];

    fn rows() -> Vec<[String; 4]> {
        let row = |cells: [&str; 4]| cells.map(str::to_string);
        vec![
            row(["10.0.0.1 > 10.0.0.2 QP 0x11", "98.123", "12345678", "terminated"]),
            row(["10.0.0.1 > 10.0.0.2 QP 0x12", "0.001", "1", "passing"]),
        ]
    }

    #[test]
    fn columns_of_low_rank_go_before_a_figure_is_cut() {
        let wide = lines(COLUMNS, &rows(), 100);
        assert_eq!(wide[0], "flow                           rate    stored  state");
        assert_eq!(wide[1], "10.0.0.1 > 10.0.0.2 QP 0x11  98.123  12345678  terminated");
        assert_eq!(wide[2], "10.0.0.1 > 10.0.0.2 QP 0x12   0.001         1  passing");
        let narrow = lines(COLUMNS, &rows(), 36);
        assert_eq!(narrow[0], "flow                rate  state");
        assert_eq!(narrow[1], "10.0.0.1 > 10.0…  98.123  terminated");
    }

    #[test]
    fn every_figure_is_whole_or_absent_at_any_width() {
        for width in 0..70 {
            for line in lines(COLUMNS, &rows(), width) {
                assert!(length(&line) <= width, "{width}: {line}");
                for word in line.split_whitespace().filter(|word| word.contains("345678")) {
                    assert_eq!(word, "12345678", "{width}");
                }
            }
        }
    }

    #[test]
    fn columns_that_do_not_fit_follow_in_blocks_behind_their_keys() {
        let rows: Vec<Vec<String>> = [
            ["link", "from", "frames", "bytes", "lost"],
            ["wan", "west", "12345678", "987654321", "7"],
        ]
        .map(|row| row.map(str::to_string).to_vec())
        .to_vec();
        assert_eq!(
            blocks(&rows, 2, 40),
            "link  from    frames      bytes  lost\nwan   west  12345678  987654321     7\n"
        );
        assert_eq!(
            blocks(&rows, 2, 30),
            "link  from    frames\nwan   west  12345678\n\n\
             link  from      bytes  lost\nwan   west  987654321     7\n"
        );
        assert_eq!(blocks(&rows, 5, 40), blocks(&rows, 2, 40), "nothing but keys");
        let long = rows.iter().map(|row| [&[row[0].repeat(9)], &row[1..]].concat());
        let long: Vec<Vec<String>> = long.collect();
        let text = blocks(&long, 1, 30);
        assert!(text.starts_with("linklinklinklinkli…  from\n"), "{text}");
        for width in [20, 30, 60] {
            let text = blocks(&long, 1, width);
            assert!(text.lines().all(|line| length(line) <= width), "{text}");
            assert_eq!(text.matches("987654321").count(), 1, "{width}: {text}");
        }
    }

    #[test]
    fn truncated_words_end_with_an_ellipsis() {
        assert_eq!(truncate("terminated", 10), "terminated");
        assert_eq!(truncate("terminated", 9), "terminat…");
        assert_eq!(truncate("µµµ", 2), "µ…");
        assert_eq!((truncate("ab", 1), truncate("ab", 0)), ("…".into(), String::new()));
    }
}
