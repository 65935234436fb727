//! Frames per second over a veth pair: AF_XDP ports beside `AF_PACKET` ones, in the same run.
//!
//! Run as root: `cargo bench -p longhaul-af-xdp`. Creates its own network namespace.
//!
//! One thread sends a burst at one end and receives it at the other, so a figure is the cost of
//! both ends and of the kernel between them, on one processor. Rounds of all kinds alternate;
//! ratios are of consecutive rounds.

use std::process::Command;
use std::time::{Duration, Instant};

use longhaul_af_xdp::{Mode, XdpConfig, XdpPort};
use longhaul_netdev::{PacketConfig, PacketPort};
use longhaul_port::{LinkState, Port};

const BURST: usize = 32;
const ROUNDS: usize = 9;
const ROUND: Duration = Duration::from_millis(300);
/// A burst that has not arrived within this time is lost.
const LOST_AFTER: Duration = Duration::from_millis(100);

#[derive(Clone, Copy)]
enum Kind {
    Packet,
    Xdp(Mode),
}

const KINDS: [(&str, Kind); 3] = [
    ("AF_PACKET", Kind::Packet),
    ("AF_XDP generic", Kind::Xdp(Mode::Generic)),
    ("AF_XDP native", Kind::Xdp(Mode::Native)),
];

fn open(kind: Kind, interface: &str) -> Box<dyn Port> {
    let mut port: Box<dyn Port> = match kind {
        Kind::Packet => Box::new(PacketPort::open(&PacketConfig::new(interface)).expect("a port")),
        Kind::Xdp(mode) => {
            let config = XdpConfig { mode, ..XdpConfig::new(interface) };
            Box::new(XdpPort::open(&config).unwrap_or_else(|error| panic!("{error}")))
        }
    };
    while port.service().expect("a port") == LinkState::Down {
        std::thread::yield_now();
    }
    port
}

/// Moves a burst, and returns how much of it arrived.
fn burst(from: &mut dyn Port, to: &mut dyn Port, len: usize, memory: &mut [u8]) -> usize {
    for _ in 0..BURST {
        let taken = from.transmit(len, &mut |frame| frame.copy_from_slice(&memory[..len]));
        assert!(taken.expect("a port"), "no room");
    }
    from.flush().expect("a port");
    let (mut came, start) = (0, Instant::now());
    while came < BURST && start.elapsed() < LOST_AFTER {
        let copy = &mut |frame: &[u8]| memory[..frame.len()].copy_from_slice(frame);
        came += to.receive(BURST - came, copy).expect("a port");
        from.service().expect("a port");
    }
    came
}

/// Frames per second that arrive, with both ends of `kind`.
fn measure(kind: Kind, len: usize) -> f64 {
    let (mut from, mut to) = (open(kind, "ea"), open(kind, "eb"));
    let mut memory = vec![0_u8; 65536];
    memory[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5]);
    for _ in 0..20 {
        burst(&mut *from, &mut *to, len, &mut memory);
    }
    let (mut came, start) = (0, Instant::now());
    while start.elapsed() < ROUND {
        came += burst(&mut *from, &mut *to, len, &mut memory);
    }
    came as f64 / start.elapsed().as_secs_f64()
}

fn median(mut samples: Vec<f64>) -> (f64, f64, f64) {
    samples.sort_by(f64::total_cmp);
    (samples[samples.len() / 2], samples[0], samples[samples.len() - 1])
}

fn main() {
    // SAFETY: takes a number; only this thread, the first, is affected, and those it makes.
    let unshared = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    let make = "ip link add ea mtu 9000 type veth peer name eb mtu 9000; ip link set ea up; ip \
                link set eb up";
    let made = unshared == 0
        && Command::new("sh").args(["-e", "-c", make]).status().is_ok_and(|done| done.success());
    if !made {
        return eprintln!("!!! SKIPPED: needs root and `ip`");
    }
    println!(
        "frames per second over a veth pair, one thread for both ends, median of {ROUNDS} (least \
         to most)"
    );
    for (mtu, lengths) in [(1500, [64, 1024, 1514].as_slice()), (9000, &[64, 4170, 9014])] {
        for end in ["ea", "eb"] {
            let set =
                Command::new("ip").args(["link", "set", end, "mtu", &mtu.to_string()]).status();
            assert!(set.is_ok_and(|done| done.success()), "cannot set the MTU");
        }
        for &len in lengths {
            let mut samples: [Vec<f64>; KINDS.len()] = Default::default();
            for _ in 0..ROUNDS {
                for ((_, kind), samples) in KINDS.iter().zip(&mut samples) {
                    samples.push(measure(*kind, len));
                }
            }
            let peer = samples[0].clone();
            for ((name, _), samples) in KINDS.iter().zip(samples) {
                let ratios = samples.iter().zip(&peer).map(|(one, peer)| one / peer).collect();
                let ((rate, ..), (ratio, least, most)) = (median(samples), median(ratios));
                println!(
                    "MTU {mtu}, {len:>5} B, {name:<15}{:>8.3} M/s  to AF_PACKET {ratio:.2} \
                     ({least:.2} to {most:.2})",
                    rate / 1e6
                );
            }
        }
    }
}
