//! Tests of ports without a peer, of which a lab has many: they cost little while others work, and
//! are still serviced.

use longhaul_host::{Clock, Driver, DriverConfig, DriverCounters};
use longhaul_node::{Deadline, Frame, Node, Side, Transmit};
use longhaul_port::{LinkState, LoopbackPort, Port, PortError, forward_port, loopback};
use longhaul_units::{Duration, Instant};

/// A port that counts polls and has a configurable state.
struct Watched {
    inner: LoopbackPort,
    state: LinkState,
    looks: u64,
}

impl Port for Watched {
    fn service(&mut self) -> Result<LinkState, PortError> {
        self.looks += 1;
        self.inner.service()
    }
    fn link_state(&self) -> LinkState {
        self.state
    }

    forward_port!(
        |self| self.inner => receive, transmit_room, transmit, flush, arm, disarm, descriptors
    );
    forward_port!(|self| self.inner => capabilities, counters);
}

/// Counts the frames of each side.
#[derive(Default)]
struct Sink([u64; 2]);

impl Node for Sink {
    fn handle_frame(&mut self, _: Instant, side: Side, _: &Frame<'_>) {
        self.0[side] += 1;
    }
    fn handle_timeout(&mut self, _: Instant) {}
    fn poll_transmit(&mut self, _: Instant, _: &mut dyn Transmit) {}
    fn poll_timeout(&self) -> Option<Deadline> {
        None
    }
}

fn watched(name: &str, state: LinkState) -> (LoopbackPort, Watched) {
    let (outer, inner) = loopback::pair(name, 64, 100).unwrap();
    (outer, Watched { inner, state, looks: 0 })
}

fn send(port: &mut LoopbackPort) {
    port.transmit(60, &mut |slot| slot.fill(0)).unwrap();
    port.flush().unwrap();
}

#[test]
fn are_looked_at_a_thousand_times_a_second_while_others_work() {
    let (mut busy, busy_inner) = watched("busy", LinkState::Up);
    let (mut quiet, quiet_inner) = watched("quiet", LinkState::Down);
    let config = DriverConfig { hook_interval: Duration::ZERO, ..DriverConfig::default() };
    let clock = Clock::start();
    let (driver, handle) =
        Driver::new(Sink::default(), vec![busy_inner, quiet_inner], clock, config).unwrap();
    let (mut calls, mut looks, mut elapsed_ms) = (0, 0, 0);
    let finished =
        driver.run(|now: Instant, node: &mut Sink, ports: &mut [Watched], _: &DriverCounters| {
            calls += 1;
            send(&mut busy);
            if calls == 20_000 {
                (looks, elapsed_ms) = (ports[1].looks, now.as_ns() / 1_000_000);
                send(&mut quiet);
            }
            if node.0[1] == 1 {
                handle.stop();
            }
        });
    let counters = finished.counters;
    assert_eq!(
        finished.ports[0].looks, counters.turns,
        "a port with a peer is looked at in every turn"
    );
    let most = elapsed_ms + counters.sleeps + 1;
    assert!(looks <= most, "{looks} looks in {elapsed_ms} ms: {counters:?}");
    assert!(counters.turns >= 20_000, "its frame is found after that: {counters:?}");
}
