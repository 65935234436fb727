//! Presence by station and time, in bounded memory.

use longhaul_bench::{Columns, HeatMap, Shades};
use longhaul_ingest::chunk::Chunk;
use longhaul_ingest::ring::Fate;
use serde::Serialize;

/// Most columns: with more windows, each column holds more of them.
const COLUMNS_MAX: usize = 128;

/// Messages of a stream in the windows of a column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cell {
    present: u64,
    messages: u64,
}

/// Presence by stream and time.
#[derive(Debug)]
pub struct Presence {
    streams: usize,
    first_window: Option<u64>,
    windows_per_column: u64,
    /// By column and stream.
    columns: Vec<Vec<Cell>>,
}

/// Presence for programs.
#[derive(Debug, Serialize)]
pub struct Table {
    /// First window of the first column.
    first_window: u64,
    /// Windows of a column.
    windows_per_column: u64,
    /// Fraction of messages present, by stream and column; null where no window was delivered.
    streams: Vec<Vec<Option<f64>>>,
}

impl Presence {
    /// Nothing yet, of this number of streams.
    pub fn new(streams: u32) -> Self {
        let streams = streams as usize;
        Presence { streams, first_window: None, windows_per_column: 1, columns: Vec::new() }
    }

    /// Adds a chunk.
    pub fn add(&mut self, chunk: &Chunk) {
        let slots = chunk.shape().slots as usize;
        for (stream, fates) in (chunk.stream_id() as usize..).zip(chunk.fates().chunks(slots)) {
            let present = fates.iter().filter(|fate| **fate == Fate::Present).count() as u64;
            self.count(chunk.chunk_id(), stream, present, slots as u64);
        }
    }

    fn count(&mut self, window: u64, stream: usize, present: u64, messages: u64) {
        // Windows before the first one, of another ring, count with it.
        let after = window.saturating_sub(*self.first_window.get_or_insert(window));
        while after / self.windows_per_column >= COLUMNS_MAX as u64 {
            self.windows_per_column *= 2;
            self.columns = self.columns.chunks(2).map(merged).collect();
        }
        let column = (after / self.windows_per_column) as usize;
        if self.columns.len() <= column {
            self.columns.resize(column + 1, vec![Cell::default(); self.streams]);
        }
        if let Some(cell) = self.columns[column].get_mut(stream) {
            cell.present += present;
            cell.messages += messages;
        }
    }

    /// For programs.
    pub fn table(&self) -> Table {
        let fraction =
            |cell: &Cell| (cell.messages > 0).then(|| cell.present as f64 / cell.messages as f64);
        let row = |stream: usize| -> Vec<_> {
            self.columns.iter().map(|column| fraction(&column[stream])).collect()
        };
        Table {
            first_window: self.first_window.unwrap_or(0),
            windows_per_column: self.windows_per_column,
            streams: (0..self.streams).map(row).collect(),
        }
    }
}

fn merged(columns: &[Vec<Cell>]) -> Vec<Cell> {
    let mut sum = columns[0].clone();
    for column in &columns[1..] {
        for (to, from) in sum.iter_mut().zip(column) {
            to.present += from.present;
            to.messages += from.messages;
        }
    }
    sum
}

impl Table {
    /// The map of an observation described by `note`; `None` if no window was delivered.
    pub fn map(&self, note: String) -> Option<HeatMap> {
        self.streams.iter().any(|row| !row.is_empty()).then(|| HeatMap {
            title: "Messages present, by station and window".to_owned(),
            y: "station".to_owned(),
            x: "window".to_owned(),
            names: (0..self.streams.len()).map(|stream| stream.to_string()).collect(),
            columns: Columns::Even {
                first: self.first_window as f64,
                width: self.windows_per_column as f64,
            },
            shades: Shades::Missing,
            cells: self.streams.clone(),
            note,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_merge_and_lose_nothing() {
        let mut presence = Presence::new(2);
        for window in 1000..2000 {
            presence.count(window, 0, 10, 10);
            if window >= 1500 {
                presence.count(window, 1, 5, 10);
            }
        }
        let table = presence.table();
        assert_eq!((table.first_window, table.windows_per_column), (1000, 8));
        assert!(table.streams[0].iter().all(|cell| *cell == Some(1.0)));
        assert_eq!(table.streams[1].len(), 125);
        assert_eq!((table.streams[1][0], table.streams[1][124]), (None, Some(0.5)));
        let messages: u64 = presence.columns.iter().map(|column| column[0].messages).sum();
        assert_eq!(messages, 10_000);
        assert!(Presence::new(2).table().map(String::new()).is_none());
    }

    #[test]
    fn a_jump_and_a_window_before_the_first_are_no_fault() {
        let mut presence = Presence::new(1);
        for window in [5, 3, u64::MAX] {
            presence.count(window, 0, 1, 1);
        }
        assert!(presence.table().streams[0].len() <= COLUMNS_MAX);
    }
}
