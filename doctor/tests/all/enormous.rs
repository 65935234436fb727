//! A capture larger than any memory. Run by hand:
//! `cargo test --release -p longhaul-doctor --test all enormous:: -- --ignored`.

use crate::script::Script;
use longhaul_doctor::{Doctor, Options, examine};
use longhaul_wire::pcap::{LinkType, RecordHeader, file_header};
use std::io::{self, Read};
use std::time::Instant;

/// 7.7 GB of WRITEs and ACKs, made while they are read.
const PACKETS: u64 = 3_600_000;

struct Endless {
    request: Vec<u8>,
    ack: Vec<u8>,
    made: u64,
    rest: Vec<u8>,
    at: usize,
}

impl Read for Endless {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.at == self.rest.len() {
            if self.made == PACKETS {
                return Ok(0);
            }
            self.rest.clear();
            self.at = 0;
            let packet = self.made / 2;
            // An ACK comes 64 packets after its request.
            let (frame, psn) = match self.made % 2 {
                0 => (&mut self.request, packet),
                _ => (&mut self.ack, packet.saturating_sub(64)),
            };
            frame[51..54].copy_from_slice(&(psn as u32).to_be_bytes()[1..]);
            let len = frame.len() as u32;
            let header = RecordHeader {
                timestamp_ns: self.made * 500,
                captured_len: len,
                original_len: len,
            };
            self.rest.extend(header.write());
            self.rest.extend_from_slice(frame);
            self.made += 1;
        }
        let len = out.len().min(self.rest.len() - self.at);
        out[..len].copy_from_slice(&self.rest[self.at..self.at + len]);
        self.at += len;
        Ok(len)
    }
}

/// Peak memory of this process, in KiB.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
#[ignore = "8 GB take several seconds, in a release build"]
fn a_capture_streams_through_a_few_megabytes() {
    let mut script = Script::default();
    script.write(0, 0, 4096);
    script.ack(0, 0);
    let [request, ack] = [0, 1].map(|n| script.frames[n].bytes.clone());
    let rest = file_header(LinkType::ETHERNET, 65_535).to_vec();
    let input = Endless { request, ack, made: 0, rest, at: 0 };
    let mut doctor = Doctor::new(Options::default());
    let (before, begun) = (peak_kib(), Instant::now());
    let mut read = 0;
    examine(input, &mut doctor, |bytes| read = bytes).unwrap();
    let (grown, seconds) = (peak_kib() - before, begun.elapsed().as_secs_f64());
    let report = doctor.finish();
    println!(
        "{:.1} GB in {seconds:.1} s: {:.2} GB/s, {grown} KiB more",
        read as f64 / 1e9,
        read as f64 / 1e9 / seconds
    );
    assert_eq!(report.flows[0].request_packets, PACKETS / 2);
    assert_eq!(report.flows[0].counters.resent_packets, 0);
    assert!(grown < 32 << 10, "{grown} KiB");
}
