//! Sends packets through flows, to count instructions: `count FORM PACKETS [PAYLOAD [FLOWS]]`, by
//! default with 4096 bytes and one flow.
//!
//! Run `perf stat -e instructions:u target/release/examples/count received 100000`, and the same
//! with `build` at the end to subtract the cost of building the packets.

#[path = "../benches/load/mod.rs"]
mod load;

use load::{CHUNK, Form, Load};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let form = match arguments.next().as_deref() {
        Some("received") => Form::Received,
        Some("copied") => Form::Copied,
        Some("shared") => Form::Shared,
        Some("own") | None => Form::Own,
        Some(other) => {
            eprintln!("no form {other}: received, copied, shared or own");
            std::process::exit(2);
        }
    };
    let mut numbers = arguments.by_ref().map_while(|argument| argument.parse::<usize>().ok());
    let packets = numbers.next().unwrap_or(100_000);
    let payload_len = numbers.next().unwrap_or(4096);
    let flows = numbers.next().unwrap_or(1);
    let build_only = std::env::args().next_back().is_some_and(|last| last == "build");
    let mut load = Load::new(form, payload_len, flows as u32);
    for _ in 0..packets / CHUNK {
        load.prepare();
        if !build_only {
            load.run();
        }
    }
}
