//! Tests of parity: recovery, refusals, the choice of layouts.

mod choice;
mod hostile;
mod path;
mod recovery;
