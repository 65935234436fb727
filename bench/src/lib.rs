//! Results, and what is made of them.
//!
//! A [`Record`] is one point of one experiment, from one [`Source`]: published by others, given by
//! a formula, predicted by the planner, simulated, or measured. An [`Experiment`] says what a set
//! of records is about: published cells, how closely they have to be met, what was assumed. Both
//! lie in result files of one JSON object per line ([`ResultFile`], [`ResultWriter`];
//! docs/results.md has the schema). An [`Assessment`] holds sources against each other; a
//! [`Report`] shows assessments as one HTML file, [`Comparison`] two sets of records side by side.
//!
//! It knows nothing of what produced a record, runs nothing and asks no network: a report is a pure
//! function of its files, and the same files give the same bytes.
#![forbid(unsafe_code)]

mod assess;
mod compare;
mod csv;
mod distributions;
mod energy;
mod expectation;
mod experiment;
pub mod export;
mod figures;
mod plot;
mod point;
mod quantity;
mod record;
mod report;
mod results;
mod samples;
mod spread;
mod table;
mod timeline;

pub use assess::{Assessment, Cell, Counts, Figure, Judgement, Tally, Verdict};
pub use compare::{Comparison, Difference, Origin, Unmatched};
pub use energy::{Baseline, Energy, POWERTOP, Saving};
pub use expectation::{Basis, Condition, Conditions, Exemption, Expectation, Tolerance};
pub use experiment::{Assumption, Document, Experiment, PublishedCell};
pub use figures::figures;
pub use plot::{Columns, HeatMap, Line, Marker, Plot, PlotAxis, PlotError, Scale, Shades, Style};
pub use point::{Point, Scalar};
pub use quantity::Quantity;
pub use record::{PairRecord, Provenance, Record, SCHEMA, Source, Started};
pub use report::{Report, Summary};
pub use results::{Damage, ReadError, ResultFile, ResultWriter, WriteError};
pub use samples::{FEW, Samples, Statistics};
pub use table::{Table, TableCell, TableColumn, TableRow, tables};
