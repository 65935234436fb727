//! Tests of the emulated link: rules, schedules, statistics of chance.

mod frames;
mod link;
mod rules;
mod schedule;
mod statistics;
