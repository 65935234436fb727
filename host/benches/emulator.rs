//! The emulated fibre in real time, between two loopback ports: how late frames come out, and
//! whether long frames are lost at nearly 100 Gbit/s.
//!
//! `cargo bench -p longhaul-host --bench emulator`
//!
//! One thread drives the fibre; this one sends frames that carry their time of sending, and
//! receives them at the far end. The error is the time from just before a frame is published to
//! just after it is found, minus delay and serialisation, so it includes both ports. If other
//! processes use the two processors, the result measures the scheduler; running the bench under
//! `chrt -f 1` prevents that for half a second at a time.

use hdrhistogram::Histogram;
use longhaul_host::{Clock, Driver, DriverConfig, DriverCounters, MalformedFrames, TurnConfig};
use longhaul_link::{Link, LinkConfig, LinkCounters};
use longhaul_port::{LoopbackPort, Port, loopback};
use longhaul_units::{BitRate, Duration, Instant};
use std::thread::JoinHandle;

const RATE_GBPS: u64 = 100;
/// Interval between frames of a delay measurement: far shorter than the delay, so that the fibre is
/// never empty.
const GAP: Duration = Duration::from_us(20);
const FRAMES: u64 = 30_000;
const WARM_UP: u64 = 5_000;
/// Bytes on the wire beyond a frame's own.
const WIRE_OVERHEAD: u64 = 24;

/// A running fibre.
struct Emulator {
    clock: Clock,
    a: LoopbackPort,
    b: LoopbackPort,
    handle: longhaul_host::Handle<Link>,
    thread: JoinHandle<longhaul_host::Finished<Link, LoopbackPort>>,
}

impl Emulator {
    fn start(delay: Duration, rate: BitRate, spins: bool) -> Self {
        let (a, inner_a) = loopback::pair("a", 512, 8192).expect("two ports");
        let (b, inner_b) = loopback::pair("b", 512, 8192).expect("two ports");
        let clock = Clock::start();
        let config = LinkConfig {
            delay,
            rate: Some(rate),
            memory_bytes_max: 4 << 30,
            ..LinkConfig::default()
        };
        let link = Link::new(config).expect("a link");
        let turn = TurnConfig { malformed: MalformedFrames::Carry, ..TurnConfig::default() };
        let config = DriverConfig { turn, spins, ..DriverConfig::default() };
        let (driver, handle) =
            Driver::new(link, vec![inner_a, inner_b], clock, config).expect("a driver");
        let nothing = |_: Instant, _: &mut Link, _: &mut [LoopbackPort], _: &DriverCounters| {};
        let thread = std::thread::spawn(move || driver.run(nothing));
        Emulator { clock, a, b, handle, thread }
    }

    fn end(self) -> LinkCounters {
        self.handle.stop();
        self.thread.join().expect("the driver ends").node.counters(0)
    }
}

/// Errors in nanoseconds, of frames that carry their time of sending.
fn errors(delay: Duration, len: usize, spins: bool) -> Histogram<u64> {
    let rate = BitRate::from_gbps(RATE_GBPS).expect("a rate");
    let mut emulator = Emulator::start(delay, rate, spins);
    let expected = delay + rate.time_for_bytes(len as u64 + WIRE_OVERHEAD);
    let mut histogram = Histogram::new(4).expect("four digits");
    let (clock, mut sent, mut came) = (emulator.clock, 0, 0);
    let mut send_at = clock.now();
    while came < FRAMES {
        if sent < FRAMES && clock.now() >= send_at {
            let now = clock.now();
            let is_taken = emulator.a.transmit(len, &mut |slot| {
                slot.fill(0);
                slot[14..22].copy_from_slice(&now.as_ps().to_be_bytes());
            });
            emulator.a.flush().expect("a flush");
            sent += u64::from(is_taken.expect("a frame that fits"));
            // Time lost to the scheduler is not caught up.
            send_at = if now.since(send_at) > GAP { now } else { send_at } + GAP;
        }
        let received = emulator.b.receive(64, &mut |frame| {
            let stamp = frame[14..22].try_into().expect("8 bytes");
            let passed = clock.now().since(Instant::from_ps(u64::from_be_bytes(stamp)));
            came += 1;
            if came > WARM_UP {
                histogram.record((passed - expected).as_ns()).expect("it grows");
            }
        });
        received.expect("frames");
    }
    emulator.end();
    histogram
}

/// Sends 4 KiB frames with this delay and at this rate for `time`, and prints the result.
fn flood(offered: BitRate, delay: Duration, time: Duration) {
    let rate = BitRate::from_gbps(RATE_GBPS).expect("a rate");
    let mut emulator = Emulator::start(delay, rate, true);
    let clock = emulator.clock;
    let len = 4096 + 58;
    let gap = offered.time_for_bytes(len as u64 + WIRE_OVERHEAD);
    let start = clock.now();
    let (mut sent, mut came, mut no_room, mut behind_max) = (0_u64, 0_u64, 0_u64, Duration::ZERO);
    let mut last_came = start;
    while clock.now() < start + time
        || (came < sent && clock.now() < start + time + Duration::from_ms(500))
    {
        let now = clock.now();
        for _ in 0..32 {
            let due = start + gap.times(sent);
            if due > now || due >= start + time {
                break;
            }
            behind_max = behind_max.max(now.since(due));
            // As a NIC writes it: the whole frame is copied from elsewhere.
            match emulator
                .a
                .transmit(len, &mut |slot| slot.fill(sent as u8))
                .expect("a frame that fits")
            {
                true => sent += 1,
                false => {
                    no_room += 1;
                    break;
                }
            }
        }
        emulator.a.flush().expect("a flush");
        let received = emulator.b.receive(64, &mut |frame| {
            std::hint::black_box(frame);
            came += 1;
        });
        if received.expect("frames") > 0 {
            last_came = clock.now();
        }
    }
    let counters = emulator.end();
    let seconds = last_came.since(start).as_secs_f64();
    println!(
        "4 KiB frames offered at {offered} over {delay}: {came} of {sent} came, {:.1} Gbit/s on \
         the wire; drops {}, ring full {no_room} times, sender at most {behind_max} behind, queue \
         at most {} KiB",
        came as f64 * (len as f64 + WIRE_OVERHEAD as f64) * 8.0 / seconds / 1e9,
        counters.drops.total(),
        counters.queue_bytes_max >> 10,
    );
}

/// Leaves the processors to other processes for a while.
fn pause() {
    std::thread::sleep(std::time::Duration::from_millis(500));
}

fn main() {
    println!(
        "{:<34}{:>10}{:>10}{:>10}{:>10}{:>10}   ns too late, {} frames",
        "delay error between two rings",
        "least",
        "median",
        "p99",
        "p99.9",
        "most",
        FRAMES - WARM_UP
    );
    for spins in [false, true] {
        for (delay, len) in [(100, 64), (1000, 64), (5000, 64), (1000, 4154)] {
            let delay = Duration::from_us(delay);
            pause();
            let histogram = errors(delay, len, spins);
            let at = |part: f64| histogram.value_at_quantile(part);
            let name = format!("{}, {len} B, {delay}", if spins { "spinning" } else { "sharing" });
            println!(
                "{name:<34}{:>10}{:>10}{:>10}{:>10}{:>10}",
                histogram.min(),
                at(0.5),
                at(0.99),
                at(0.999),
                histogram.max()
            );
        }
    }
    for (gbps, delay_us) in [(50, 100), (95, 100), (95, 1000)] {
        pause();
        let offered = BitRate::from_gbps(gbps).expect("a rate");
        flood(offered, Duration::from_us(delay_us), Duration::from_ms(500));
    }
}
