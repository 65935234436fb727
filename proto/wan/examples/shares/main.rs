//! Shows how boxes with an adaptive rate use a bottleneck and share it with each other, with TCP's
//! CUBIC and with BBR, in virtual time: `cargo run --release -p longhaul-wan --example shares
//! [alone|boxes|others|beside]`.

#[path = "../../tests/all/dumbbell/mod.rs"]
mod dumbbell;
#[path = "../../tests/all/net/mod.rs"]
mod net;

use dumbbell::bbr::Bbr;
use dumbbell::cubic::Cubic;
use dumbbell::{Bottleneck, Competitor, Dumbbell, Shares, adaptive};
use longhaul_units::{BitRate, Duration};

/// A path with a bottleneck; `buffer` and `marks_at` in bandwidth-delay products.
#[derive(Clone, Copy)]
struct Setup {
    mbps: u64,
    rtt: Duration,
    buffer: f64,
    marks_at: Option<f64>,
    loss: f64,
    jitter: Duration,
}

const PLAIN: Setup = Setup {
    mbps: 1000,
    rtt: Duration::from_ms(10),
    buffer: 2.0,
    marks_at: None,
    loss: 0.0,
    jitter: Duration::ZERO,
};

impl Setup {
    fn rate(&self) -> BitRate {
        BitRate::from_bps(self.mbps * 1_000_000).expect("a rate above 0")
    }

    fn bdp(&self) -> u64 {
        self.rate().bytes_in(self.rtt)
    }

    fn net(&self) -> Dumbbell {
        let part = |of: f64| (self.bdp() as f64 * of) as u64;
        let mut bottleneck = Bottleneck::new(self.rate(), part(self.buffer));
        bottleneck.marks_at_bytes = self.marks_at.map(part);
        bottleneck.loss = self.loss;
        bottleneck.jitter = self.jitter;
        Dumbbell::new(bottleneck)
    }

    fn join(&self, net: &mut Dumbbell, start: Duration) {
        net.pair(|id| adaptive(id, self.bdp()), self.rtt, start);
    }

    fn queue(&self, shares: &Shares) -> f64 {
        100.0 * shares.queue_mean / self.bdp() as f64
    }
}

fn alone() {
    println!("One pair, from 100 round trips on for 200");
    println!(
        "  Mbit/s     RTT  buffer  marks    loss  jitter    used  goodput  queue (% of BDP)  \
         dropped"
    );
    let rtts = [1, 10, 100].map(Duration::from_ms);
    let speeds =
        [(1000, 0), (1000, 1), (1000, 2), (10_000, 0), (10_000, 1), (100_000, 0), (100_000, 1)];
    let plain = speeds.map(|(mbps, rtt)| Setup { mbps, rtt: rtts[rtt], ..PLAIN });
    let others = [
        Setup { buffer: 0.02, ..PLAIN },
        Setup { buffer: 0.1, ..PLAIN },
        Setup { buffer: 8.0, ..PLAIN },
        Setup { marks_at: Some(0.02), ..PLAIN },
        Setup { marks_at: Some(0.1), ..PLAIN },
        Setup { loss: 1e-3, ..PLAIN },
        Setup { loss: 1e-2, ..PLAIN },
        Setup { loss: 5e-2, ..PLAIN },
        Setup { jitter: Duration::from_ms(1), ..PLAIN },
        Setup { rtt: rtts[0], jitter: Duration::from_ms(1), ..PLAIN },
    ];
    for setup in plain.into_iter().chain(others) {
        let mut net = setup.net();
        setup.join(&mut net, Duration::ZERO);
        net.run_for(setup.rtt.times(100));
        let span = setup.rtt.times(200);
        let shares = net.measure(span);
        println!(
            "{:>8} {:>7} {:>7} {:>6} {:>7} {:>7} {:>6.1}% {:>7.1}% {:>8.1} {:>17.2}%",
            setup.mbps,
            setup.rtt.to_string(),
            setup.buffer,
            setup.marks_at.map_or("-".into(), |at| at.to_string()),
            setup.loss,
            setup.jitter.to_string(),
            100.0 * shares.used(),
            shares.goodput_bps[0] / setup.mbps as f64 / 1e4,
            setup.queue(&shares),
            100.0 * shares.dropped as f64 / setup.rate().bytes_in(span) as f64,
        );
    }
}

fn boxes() {
    println!(
        "Pairs that begin one after the other: the round trips after the last began until Jain's \
         index, over 25 of them, stays"
    );
    println!("above 0.95 for 100, and then over 300: index, used, queue");
    let long = Setup { mbps: 300, rtt: Duration::from_ms(100), ..PLAIN };
    let short = Setup { rtt: Duration::from_ms(1), ..PLAIN };
    for (setup, count) in [(PLAIN, 2), (short, 2), (long, 2), (PLAIN, 4)] {
        for apart in [100, 130, 170] {
            let mut net = setup.net();
            (0..count).for_each(|n| setup.join(&mut net, setup.rtt.times(apart * n)));
            net.run_for(setup.rtt.times(apart * (count - 1)));
            let (mut even, mut steps) = (0, 0);
            while even < 4 && steps < 80 {
                let jain = net.measure(setup.rtt.times(25)).jain();
                even = if jain > 0.95 { even + 1 } else { 0 };
                steps += 1;
            }
            let shares = net.measure(setup.rtt.times(300));
            let after = if even < 4 { "never".into() } else { (25 * (steps - 4)).to_string() };
            println!(
                "{count} at {:>4} Mbit/s, {:>6}, {apart} apart: {after:>5}; {:.3} {:.1}% {:.1}%",
                setup.mbps,
                setup.rtt.to_string(),
                shares.jain(),
                100.0 * shares.used(),
                setup.queue(&shares)
            );
        }
    }
    println!("Round trips of 10 and 20, and of 10 and 50 ms: shares");
    for other in [20, 50] {
        let mut net = PLAIN.net();
        PLAIN.join(&mut net, Duration::ZERO);
        Setup { rtt: Duration::from_ms(other), ..PLAIN }.join(&mut net, Duration::from_ms(500));
        net.run_for(Duration::from_ms(8000));
        let shares = net.measure(Duration::from_ms(8000));
        println!("10 and {other} ms: {:.2} {:.2}", shares.of_rate[0], shares.of_rate[1]);
    }
}

fn others() {
    let setup = Setup { mbps: 300, rtt: Duration::from_ms(20), ..PLAIN };
    println!("300 Mbit/s, 20 ms, shares over 60 s from 20 s on; queue in % of BDP");
    println!(
        "buffer  box and CUBIC         box and BBR           CUBIC and BBR         2 boxes and \
         CUBIC"
    );
    for buffer in [0.5, 1.0, 4.0] {
        let setup = Setup { buffer, ..setup };
        let run = |pairs: u64, others: Vec<Box<dyn Competitor>>| {
            let mut net = setup.net();
            (0..pairs).for_each(|n| setup.join(&mut net, Duration::from_ms(500 * n)));
            for (n, model) in (3..).zip(others) {
                net.other(model, setup.rtt, Duration::from_ms(1000 * n));
            }
            net.run_for(Duration::from_ms(20_000));
            let shares = net.measure(Duration::from_ms(60_000));
            let each = shares.of_rate.iter().map(|share| format!("{share:.2}")).collect::<Vec<_>>();
            format!("{} ({:.0})", each.join(" "), setup.queue(&shares))
        };
        let cubic = || Box::new(Cubic::new()) as Box<dyn Competitor>;
        let bbr = || Box::new(Bbr::new()) as Box<dyn Competitor>;
        println!(
            "{buffer:>6}  {:<21} {:<21} {:<21} {}",
            run(1, vec![cubic()]),
            run(1, vec![bbr()]),
            run(0, vec![cubic(), bbr()]),
            run(2, vec![cubic()]),
        );
    }
}

fn beside() {
    println!(
        "500 Mbit/s, one pair and one flow: share of each over 20 s, 4 s after the later began"
    );
    println!("   RTT  buffer  CUBIC later    CUBIC first    BBR later      BBR first");
    let cubic = || Box::new(Cubic::new()) as Box<dyn Competitor>;
    let bbr = || Box::new(Bbr::new()) as Box<dyn Competitor>;
    for rtt in [2, 10].map(Duration::from_ms) {
        for buffer in [0.5, 1.0, 4.0] {
            let setup = Setup { buffer, mbps: 500, rtt, ..PLAIN };
            let run = |other: Box<dyn Competitor>, is_first: bool| {
                let mut net = setup.net();
                let (start, other_start) = if is_first { (2000, 0) } else { (0, 2000) };
                setup.join(&mut net, Duration::from_ms(start));
                net.other(other, setup.rtt, Duration::from_ms(other_start));
                net.run_for(Duration::from_ms(6000));
                let shares = net.measure(Duration::from_ms(20_000));
                let [own, other] = [0, 1].map(|sender| shares.of_rate[sender]);
                format!("{own:.2} {other:.2} ({:.0})", setup.queue(&shares))
            };
            println!(
                "{:>6}  {buffer:>6}  {:<14} {:<14} {:<14} {}",
                rtt.to_string(),
                run(cubic(), false),
                run(cubic(), true),
                run(bbr(), false),
                run(bbr(), true),
            );
        }
    }
}

fn main() {
    let asked: Vec<String> = std::env::args().skip(1).collect();
    for (name, table) in
        [("alone", alone as fn()), ("boxes", boxes), ("others", others), ("beside", beside)]
    {
        if asked.is_empty() || asked.iter().any(|asked| asked == name) {
            table();
        }
    }
}
