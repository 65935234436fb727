//! Boxes whose threads wait for a core, for tens of milliseconds at a time: a late thread is not a
//! failed path.

use crate::net::{Net, Source, Starved, config};
use longhaul_link::LinkConfig;
use longhaul_units::{BitRate, Duration};
use longhaul_wan::{PathStatus, Transport};

const RATE: Option<BitRate> = BitRate::from_bps(200_000_000);

fn fibre(rtt_us: u64, loss: f64) -> LinkConfig {
    LinkConfig {
        delay: Duration::from_us(rtt_us / 2),
        rate: RATE,
        loss,
        seed: 3,
        ..LinkConfig::default()
    }
}

/// Boxes that have met over these fibres. Those in `starved` then wait for a core up to `waits_ms`
/// at a time.
fn net(fibres: Vec<LinkConfig>, seed: u64, starved: [bool; 2], waits_ms: u64) -> Net {
    let config = |id| config(id, fibres.len(), RATE);
    let mut net = Net::new([config(1), config(2)], fibres.clone());
    net.meet();
    net.run_for(Duration::from_ms(200));
    for end in (0..2).filter(|end| starved[*end]) {
        let (runs, waits) = (Duration::from_ms(10), Duration::from_ms(waits_ms));
        net.starved[end] = Some(Starved::new(seed * 2 + end as u64, runs, waits));
    }
    net
}

fn paths(node: &Transport) -> Vec<PathStatus> {
    node.sessions().flat_map(|session| session.paths).collect()
}

/// Streams of many sizes and at many rates in both directions, for a second.
fn load(net: &mut Net, first: u32) {
    for from in 0..2 {
        let full = Source::new(from, first, 4096, false, u64::MAX).every(Duration::from_us(200));
        let seldom = [1, 7, 30, 120].map(|ms| {
            Source::new(from, first + ms as u32, 900, true, u64::MAX).every(Duration::from_ms(ms))
        });
        net.sources[usize::from(from)] = [full].into_iter().chain(seldom).collect();
    }
    net.run_for(Duration::from_ms(600));
    for source in net.sources.iter_mut().flatten() {
        source.until = source.next;
    }
    net.finish(Duration::from_ms(2000));
}

#[test]
fn lose_nothing_on_lossless_paths() {
    for (rtt_us, paths_count) in [(100, 1), (10_000, 1), (1000, 2), (10_000, 2)] {
        for starved in [[true, false], [false, true], [true, true]] {
            for seed in 0..4 {
                let fibres = (0..paths_count).map(|_| fibre(rtt_us, 0.0)).collect();
                let mut net = net(fibres, seed, starved, 60);
                load(&mut net, 5);
                for node in &net.boxes {
                    let (outages, paths) = (node.counters().path_outages, paths(node));
                    let lost: u64 = paths.iter().map(|path| path.lost).sum();
                    let holes: u64 = paths.iter().map(|path| path.black_holes).sum();
                    let context =
                        format!("RTT {rtt_us} us, {paths_count} paths, {starved:?}, seed {seed}");
                    assert_eq!(
                        (outages, lost, holes),
                        (0, 0, 0),
                        "{context}: outages, losses, black holes"
                    );
                    assert!(paths.iter().all(|path| path.mtu == 4352), "{context}: {paths:?}");
                }
            }
        }
    }
}

#[test]
fn deliver_everything_over_paths_that_lose_and_are_cut() {
    for seed in 0..3 {
        let mut net = net(vec![fibre(1000, 0.01), fibre(4000, 0.01)], seed, [true, true], 40);
        for (step, (cut, path)) in (1..).zip([(true, 0), (false, 0), (true, 1), (false, 1)]) {
            net.is_cut[path] = [cut; 2];
            load(&mut net, 1000 * step);
        }
        let lost: u64 = net.boxes.iter().flat_map(paths).map(|path| path.lost).sum();
        assert!(lost > 100, "{lost}");
    }
}

#[test]
fn leave_a_cut_path_within_50_ms_although_little_is_sent() {
    for rtt_us in [100, 1000, 10_000] {
        let mut net = net(vec![fibre(rtt_us, 0.0); 2], 0, [false; 2], 0);
        let is_up =
            |net: &Net| paths(&net.boxes[0]).iter().map(|path| path.is_up).collect::<Vec<_>>();
        net.sources[0] = vec![Source::new(0, 5, 500, true, 1)];
        net.run_for(Duration::from_ms(90));
        net.is_cut = vec![[true; 2], [false; 2]];
        // Two frames, one on each path.
        net.sources[0] = vec![Source::new(0, 6, 500, true, 2)];
        net.run_for(Duration::from_ms(50));
        assert_eq!(is_up(&net), [false, true], "RTT {rtt_us} us");
        assert_eq!(net.hosts[1].next[&6], 2);
    }
}
