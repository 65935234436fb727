//! Puts packets through one flow, for counting instructions:
//! `perf stat -e instructions:u target/release/examples/count received 100000`, and the same with 0 packets to
//! subtract what building them takes.

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
    let packets: usize = arguments.next().and_then(|n| n.parse().ok()).unwrap_or(100_000);
    let build_only = arguments.next().is_some();
    let mut load = Load::new(form, 4096, 1);
    for _ in 0..packets / CHUNK {
        load.prepare();
        if !build_only {
            load.run();
        }
    }
}
