//! State of the carriers of a pair, as text and as JSON.
#![allow(missing_docs, reason = "fields are the keys of the JSON, which has them by these names")]

use super::follow::Side;
use super::guard::GuardedPort;
use crate::figures::count;
use crate::port::PortName;
use serde::{Deserialize, Serialize};
use std::fmt::{Result, Write};

longhaul_counters::counters! {
    /// Counters of a port's carrier since the box started.
    pub struct CarrierCounters {
        /// Times that the port lost its carrier by itself.
        losses,
        /// Times that the box took the port down because the opposite port had lost its carrier.
        takedowns,
    }
}

/// The carriers of a pair whose ports follow each other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CarrierState {
    pub ports: Vec<PortCarrier>,
}

/// The carrier of a port.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PortCarrier {
    pub side: String,
    pub port: String,
    /// Why the box has taken the port down; none: it has not.
    pub taken_down: Option<String>,
    pub losses: u64,
    pub takedowns: u64,
}

/// What a box knows about the carriers of a pair.
pub struct PairCarrier {
    pub name: String,
    /// The ports with a carrier.
    sides: [Vec<OfPort>; 2],
}

struct OfPort {
    side: String,
    port: String,
    /// The port's number within its side.
    number: usize,
    follows: bool,
    why_down: Option<String>,
    taken_down: Option<String>,
    counters: CarrierCounters,
}

impl PairCarrier {
    /// A pair whose ports are up.
    pub fn new<'a>(
        name: String,
        named: impl Iterator<Item = ((String, &'a PortName), &'a Option<GuardedPort>)>,
    ) -> Self {
        let mut sides = [Vec::new(), Vec::new()];
        for (at, ((side, port), guarded)) in named.enumerate() {
            let Some(guarded) = guarded else { continue };
            sides[at.min(1)].push(OfPort {
                side,
                port: port.to_string(),
                number: at.saturating_sub(1),
                follows: guarded.follows(),
                why_down: None,
                taken_down: None,
                counters: CarrierCounters::default(),
            });
        }
        PairCarrier { name, sides }
    }

    /// A port cannot be taken down.
    pub fn stays(&mut self, side: Side, port: usize) {
        let ports = self.sides.get_mut(side).into_iter().flatten();
        ports.filter(|of| of.number == port).for_each(|of| of.follows = false);
    }

    /// A port lost its carrier, or found it.
    pub fn carrier(&mut self, side: Side, port: usize, why_down: Option<String>) {
        let ports = self.sides.get_mut(side);
        let of = ports.and_then(|ports| ports.iter_mut().find(|of| of.number == port));
        if let Some(of) = of {
            of.counters.losses += u64::from(why_down.is_some());
            of.why_down = why_down;
        }
    }

    /// A side stays down at the start. Returns the pair's name, and a line about it.
    pub fn wait(&mut self, side: Side) -> (String, String) {
        let [held, other] = self.held_and_other(side);
        let why = format!("{}, which has no carrier", names(other.iter()));
        for of in held.iter_mut().filter(|of| of.follows) {
            of.taken_down = Some(why.clone());
        }
        let (held, other) = (names(held.iter().filter(|of| of.follows)), names(other.iter()));
        let text = format!("{held} stays down until {other} has a carrier");
        (self.name.clone(), text)
    }

    /// The box took a side down. Returns the pair's name, and a line about it.
    pub fn hold(&mut self, side: Side) -> (String, String) {
        let [held, lost] = self.held_and_other(side);
        let why: Vec<String> = lost
            .iter()
            .map(|of| {
                let why = of.why_down.as_deref().unwrap_or("it found no carrier");
                format!("{} port {}: {why}", of.side, of.port)
            })
            .collect();
        let why = why.join("; ");
        for of in held.iter_mut().filter(|of| of.follows) {
            of.counters.takedowns += 1;
            of.taken_down = Some(why.clone());
        }
        let held = names(held.iter().filter(|of| of.follows));
        let text = format!("{held} taken down because of {why}");
        (self.name.clone(), text)
    }

    /// The box brought a side up again. Returns the pair's name, and a line about it.
    pub fn release(&mut self, side: Side) -> (String, String) {
        let [held, found] = self.held_and_other(side);
        for of in &mut *held {
            of.taken_down = None;
        }
        let (held, found) = (names(held.iter().filter(|of| of.follows)), names(found.iter()));
        let text = format!("{held} brought up again: {found} has its carrier");
        (self.name.clone(), text)
    }

    fn held_and_other(&mut self, side: Side) -> [&mut Vec<OfPort>; 2] {
        let [near, behind] = &mut self.sides;
        if side == 0 { [near, behind] } else { [behind, near] }
    }

    /// The side that the box has taken down.
    pub fn held(&self) -> Option<Side> {
        self.sides.iter().position(|ports| ports.iter().any(|of| of.taken_down.is_some()))
    }

    /// The state as others see it, if a port has a carrier.
    pub fn state(&self) -> Option<CarrierState> {
        let port = |of: &OfPort| PortCarrier {
            side: of.side.clone(),
            port: of.port.clone(),
            taken_down: of.taken_down.clone(),
            losses: of.counters.losses,
            takedowns: of.counters.takedowns,
        };
        let ports: Vec<PortCarrier> = self.sides.iter().flatten().map(port).collect();
        (!ports.is_empty()).then_some(CarrierState { ports })
    }
}

fn names<'a>(ports: impl Iterator<Item = &'a OfPort>) -> String {
    let names: Vec<String> = ports.map(|of| format!("{} port {}", of.side, of.port)).collect();
    names.join(", ")
}

/// Writes what is not as it was at the start.
pub fn write_carrier(state: &CarrierState, text: &mut String) -> Result {
    for port in &state.ports {
        let PortCarrier { side, port, taken_down, losses, takedowns } = port;
        if losses + takedowns == 0 && taken_down.is_none() {
            continue;
        }
        let (lost, taken) = (count(*losses, "time"), count(*takedowns, "time"));
        write!(text, "  carrier of {side} {port}: lost {lost}, taken down {taken}")?;
        match taken_down {
            Some(why) => writeln!(text, "; it is down because of {why}")?,
            None => writeln!(text)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::carrier::guard::Manner;

    #[test]
    fn what_took_what_down_is_told_and_counted() {
        let ports: [PortName; 3] = ["eth1", "eth2", "eth3"].map(|name| name.parse().unwrap());
        let sides = ["lan", "wan1", "wan2"].map(str::to_string);
        let guarded = ["eth1", "eth2", "eth3"]
            .map(|name| Some(GuardedPort { name: name.to_string(), manner: Manner::Interface }));
        let named = sides.into_iter().zip(&ports).zip(&guarded);
        let mut pair = PairCarrier::new("one".to_string(), named);
        pair.carrier(0, 0, Some("interface eth1 has no carrier".to_string()));
        let (name, text) = pair.hold(1);
        assert_eq!(name, "one");
        let why = "lan port eth1: interface eth1 has no carrier";
        let ports = "wan1 port eth2, wan2 port eth3";
        assert_eq!(text, format!("{ports} taken down because of {why}"));
        let state = pair.state().unwrap();
        assert_eq!(state.ports[1].taken_down.as_deref(), Some(why));
        assert_eq!((state.ports[0].losses, state.ports[0].takedowns), (1, 0));
        assert_eq!((state.ports[2].losses, state.ports[2].takedowns), (0, 1));
        let mut text = String::new();
        write_carrier(&state, &mut text).unwrap();
        assert_eq!(text.lines().count(), 3, "{text}");
        pair.carrier(0, 0, None);
        let (_, text) = pair.release(1);
        assert_eq!(text, format!("{ports} brought up again: lan port eth1 has its carrier"));
        let state = pair.state().unwrap();
        assert_eq!((state.ports[2].takedowns, &state.ports[2].taken_down), (1, &None));
    }
}
