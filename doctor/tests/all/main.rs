//! Tests of the doctor: captures of Linux and captures made by hand.

mod captures;
mod enormous;
mod episodes;
mod limits;
mod script;
mod vendors;
