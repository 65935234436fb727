//! Speed of virtual time: events and packets per second of processor time, and memory, by distance.
//!
//! `cargo bench -p longhaul-sim --bench speed [NAME]`. Processor time is independent of other work
//! on the machine.

#![allow(missing_docs, reason = "a program")]

#[path = "../tests/all/network/mod.rs"]
mod network;
#[path = "../src/schedule.rs"]
#[allow(unused_imports, reason = "its tests have none here")]
mod schedule;

use longhaul_sim::*;
use longhaul_units::{Duration, Instant};
use network::*;
use rustix::time::{ClockId, clock_gettime};
use schedule::Schedule;
use std::fs;

fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Peak resident memory of this process, in MB.
fn peak_memory_mb() -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kib.unwrap_or(0.0) * 1024.0 / 1e6
}

/// Resets the peak.
fn reset_peak() {
    // If the kernel does not allow it, peaks cover all earlier cases.
    let _ = fs::write("/proc/self/clear_refs", "5");
}

fn measure(name: &str, scenario: Scenario) {
    reset_peak();
    let simulation = Simulation::new(scenario, |_, _| None).expect("valid");
    let began = cpu_seconds();
    let outcome = simulation.run(1, |_| true);
    let seconds = cpu_seconds() - began;
    let packets: u64 = outcome.wires[0].entered_frames;
    println!(
        "{name:<28} {:7.2} Gbit/s {:6.2} s {:7.2} M events/s {:7.2} M packets/s {:5.2} \
         events/packet {:7.0} MB",
        outcome.flows[0].goodput_bps / 1e9,
        seconds,
        outcome.events as f64 / seconds / 1e6,
        packets as f64 / seconds / 1e6,
        outcome.events as f64 / packets as f64,
        peak_memory_mb(),
    );
}

/// Events of the schedule alone: takes the earliest of `slots` and reschedules it.
fn measure_schedule(slots: usize) {
    const EVENTS: u64 = 50_000_000;
    let mut schedule = Schedule::new(slots);
    (0..slots).for_each(|slot| schedule.set(slot, Some(Instant::from_ps(slot as u64 * 977))));
    let began = cpu_seconds();
    let mut last = Instant::ZERO;
    for event in 0..EVENTS {
        let Some((at, slot)) = schedule.first() else { break };
        last = at;
        schedule.set(slot, Some(at + Duration::from_ps(10_000 + event * 7919 % 300_000)));
    }
    let seconds = cpu_seconds() - began;
    println!(
        "schedule of {slots:<4}            {:7.1} M events/s, to {last:?}",
        EVENTS as f64 / seconds / 1e6
    );
}

fn main() {
    let wanted = std::env::args().skip(1).find(|word| !word.starts_with('-')).unwrap_or_default();
    let run = |name: &str, scenario: Scenario| {
        if name.contains(&wanted) {
            measure(name, scenario);
        }
    };
    if "schedule".contains(&wanted) {
        [8, 64, 1024].into_iter().for_each(measure_schedule);
    }
    for (bytes, count, depth) in [(4096, 500_000, 1 << 17), (1 << 20, 2000, 2048)] {
        for rtt_us in [1, 3_800, 50_000, 100_000] {
            let mut scenario = pair(&NicProfile::default(), Duration::from_ns(rtt_us * 500), 0.0);
            scenario.flows.push(flow(Op::Write, bytes, 1, bandwidth(depth, count)));
            run(&format!("pair {bytes} B, RTT {} ms", rtt_us as f64 / 1e3), scenario);
        }
    }
    let fast = NicProfile { rate_bps: 800_000_000_000, ..NicProfile::default() };
    let mut scenario = pair(&fast, Duration::from_ms(50), 0.0);
    scenario.flows.push(flow(Op::Write, 8 << 20, 1, bandwidth(4096, 3000)));
    run("800G, RTT 100 ms, 8 MiB", scenario);
    for (rtt_ms, packets) in [(4, 16), (10, 64), (100, 64)] {
        let mut scenario = pair(&NicProfile::default(), Duration::from_us(rtt_ms * 500), 0.0);
        scenario.train_packets_max = packets;
        scenario.flows.push(flow(Op::Write, 1 << 20, 1, bandwidth(2048, 40_000)));
        run(&format!("trains of {packets}, RTT {rtt_ms} ms"), scenario);
    }
    for packets in [1, 64] {
        let mut scenario = pair(&NicProfile::default(), Duration::from_ms(5), 0.0);
        scenario.train_packets_max = packets;
        scenario.flows.push(flow(Op::Read, 1 << 20, 1, bandwidth(2048, 10_000)));
        run(&format!("READ trains of {packets}, RTT 10 ms"), scenario);
    }
    for bytes in [4096, 65_536] {
        let mut scenario = accelerated_pair(&NicProfile::default(), Duration::from_ms(5), 0.0);
        scenario.flows.push(flow(
            Op::Write,
            bytes,
            1,
            bandwidth(128, (1 << 30) / u64::from(bytes)),
        ));
        run(&format!("accelerated {bytes} B, RTT 10 ms"), scenario);
    }
}
