mod bbr;
mod cubic;
#[path = "../../tests/dumbbell/mod.rs"]
mod dumbbell;
#[path = "../../tests/net/mod.rs"]
mod net;

use dumbbell::*;
use longhaul_units::{BitRate, Duration};

fn arg(n: usize, or: f64) -> f64 {
    std::env::args().nth(n).and_then(|a| a.parse().ok()).unwrap_or(or)
}

fn main() {
    // mbps rtt_ms buffer_bdp pairs stagger_ms span_ms steps loss jitter_ms mark_bdp
    let (mbps, rtt, buffer) = (arg(1, 1000.0), arg(2, 10.0), arg(3, 2.0));
    let (pairs, stagger, span, steps) =
        (arg(4, 1.0) as u64, arg(5, 1000.0), arg(6, 200.0), arg(7, 20.0) as u64);
    let rate = BitRate::from_bps((mbps * 1e6) as u64).unwrap();
    let rtt = Duration::from_us((rtt * 1e3) as u64);
    let bdp = rate.bytes_in(rtt);
    let mut b = Bottleneck::new(rate, (bdp as f64 * buffer) as u64);
    b.loss = arg(8, 0.0);
    b.jitter = Duration::from_us((arg(9, 0.0) * 1e3) as u64);
    let mark = arg(10, 0.0);
    b.marks_at_bytes = (mark > 0.0).then_some((bdp as f64 * mark) as u64);
    let mut net = Dumbbell::new(b);
    for n in 0..pairs {
        net.pair(|id| adaptive(id, bdp), rtt, Duration::from_us((stagger * 1e3) as u64 * n));
    }
    for _ in 0..arg(12, 0.0) as u64 {
        net.other(Box::new(cubic::Cubic::new()), rtt, Duration::from_ms(3000));
    }
    for _ in 0..arg(13, 0.0) as u64 {
        net.other(Box::new(bbr::Bbr::new()), rtt, Duration::from_ms(3000));
    }
    for step in 0..steps {
        if arg(11, 0.0) > 0.0 && step == steps / 3 {
            net.bottleneck.set_rate(net.now, BitRate::from_bps((mbps * 5e5) as u64).unwrap());
        }
        if arg(11, 0.0) > 0.0 && step == 2 * steps / 3 {
            net.bottleneck.set_rate(net.now, BitRate::from_bps((mbps * 1e6) as u64).unwrap());
        }
        let s = net.measure(Duration::from_us((span * 1e3) as u64));
        let p = (0..pairs as usize).filter(|&n| s.of_rate[n] > 0.01).map(|n| {
            let p = net.path(n);
            format!(
                "[{:?} q {:?} {} {} rttl {:?} loss {:.1e} cp {} par {}]",
                p.rate,
                p.queue_delay.map(|d| d.as_secs_f64() * 1e3),
                p.limited_by,
                p.delivered.map_or(0.0, |d| d.as_gbps()),
                p.rtt_least,
                p.loss,
                p.copies,
                p.parity
            )
        });
        println!(
            "{:>6.2}s used {:.3} jain {:.3} {:.3?} q {:.3} max {:.2} drop {:.3} good {:.3?} {}",
            net.now.since(longhaul_units::Instant::ZERO).as_secs_f64(),
            s.used(),
            s.jain(),
            s.of_rate,
            s.queue_mean / bdp as f64,
            s.queue_max as f64 / bdp as f64,
            s.dropped as f64 / bdp as f64,
            s.goodput_bps.iter().map(|g| g / 1e9).collect::<Vec<_>>(),
            p.collect::<String>()
        );
    }
}
