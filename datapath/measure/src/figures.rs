//! Figures that the outcomes of all measurements have.

use crate::Machine;
use std::collections::BTreeMap;
use std::fmt::Display;

/// Results of one row of a table.
pub trait Figures {
    /// Parameters of the row.
    type Cell: Display;

    /// The row's parameters.
    fn cell(&self) -> &Self::Cell;
    /// Figures by name, with units as suffixes.
    fn values(&self, machine: &Machine) -> BTreeMap<String, f64>;
    /// Maximum growth of memory during the measurement, in bytes.
    fn memory_growth(&self) -> u64;
    /// Faults other than growth of memory.
    fn faults(&self) -> Vec<String> {
        Vec::new()
    }
}
