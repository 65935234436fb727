//! Tests of the wire formats: round trips and hostile bytes.

mod hostile_bytes;
mod round_trip;
