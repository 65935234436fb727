//! Hundreds of queue pairs with perftest's default timeout, on busy processors.

use longhaul_checks::perftest::{believable_bandwidth, rows};
use longhaul_checks::{Ready, TestLab, free_tcp_port, require};
use std::panic::catch_unwind;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(300);

/// Runs `ib_write_bw` with `options` through a lab until it ends.
fn write(lab: &TestLab, options: &str) {
    require("ib_write_bw", "perftest");
    let port = free_tcp_port();
    let base = format!("ib_write_bw -d longhaul0 -F -p {port} -s 65536 {options}");
    let (_, client) = lab.pair(&base, &format!("{base} 127.0.0.1"), Ready::Tcp(port), LIMIT);
    let row = rows(&client.stdout).pop().unwrap_or_else(|| panic!("{options}: {}", client.stdout));
    believable_bandwidth(&row).unwrap_or_else(|fault| panic!("{options}: {fault}"));
}

#[test]
fn hundreds_of_queue_pairs_outlast_the_default_timeout() {
    let lab = TestLab::up("--distance 1km");
    write(&lab, "-q 512 -m 1024 -n 16 -t 16");
    write(&lab, "-q 300 -m 1024 -n 8 -t 8 -b");
}

#[test]
#[ignore = "nightly: 512 queue pairs with 8 MiB each outstanding, one way and both"]
fn deep_queues_of_hundreds_of_queue_pairs() {
    for accelerate in ["", "--accelerate"] {
        let lab = TestLab::up(&format!("--distance 1km {accelerate}"));
        write(&lab, "-q 512 -m 1024 -n 200");
        write(&lab, "-q 300 -m 1024 -n 200 -b");
    }
}

/// A lab and the options of its program.
struct Cell {
    lab: &'static str,
    options: String,
}

/// 2,000 queue pairs at every path MTU, without boxes, with accelerators and with whole boxes, in
/// one direction and in both; 5 WRITEs each, all outstanding at once.
fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    for lab in ["--accelerate none", "--accelerate both", "--accelerate transport"] {
        for mtu in [256, 512, 1024, 2048, 4096] {
            for direction in ["", " -b"] {
                let options = format!("-q 2000 -m {mtu} -n 5 -t 5{direction}");
                cells.push(Cell { lab, options });
            }
        }
    }
    cells
}

/// `LONGHAUL_CELLS='both 1024 -b'` runs the cells that contain all of these words.
#[test]
#[ignore = "nightly: 2,000 queue pairs at every path MTU, with and without boxes, one way and both"]
fn thousands_of_queue_pairs_at_every_path_mtu() {
    let wanted = std::env::var("LONGHAUL_CELLS").unwrap_or_default();
    let mut failed = Vec::new();
    for Cell { lab, options } in cells() {
        let name = format!("{lab} {options}");
        if !wanted.split_whitespace().all(|word| name.split_whitespace().any(|of| of == word)) {
            continue;
        }
        let begun = Instant::now();
        // Each cell has its own lab, unaffected by earlier cells.
        let outcome =
            catch_unwind(|| write(&TestLab::up(&format!("--distance 1km {lab}")), &options));
        let ended = if outcome.is_ok() { "ok" } else { "FAILED" };
        println!("{name}: {ended} after {:.0} s", begun.elapsed().as_secs_f64());
        if outcome.is_err() {
            failed.push(name);
        }
    }
    assert!(failed.is_empty(), "{} cells failed:\n{}", failed.len(), failed.join("\n"));
}
