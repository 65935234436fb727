//! Forwarding tables of switches, complete from the start, as after address resolution.

use crate::host::Host;
use crate::scenario::{Scenario, StationKind};
use longhaul_node::Side;
use longhaul_switch::{Switch, SwitchConfig, SwitchError};

/// Returns a switch's configuration with room for all hosts' addresses.
pub(crate) fn with_room(config: &SwitchConfig, scenario: &Scenario) -> SwitchConfig {
    SwitchConfig {
        addresses_max: config.addresses_max.max(scenario.stations.len()),
        ..config.clone()
    }
}

/// Declares the hosts behind each of a switch's ports.
pub(crate) fn declare(
    switch: &mut Switch,
    number: usize,
    scenario: &Scenario,
    joined: &[Vec<(Side, usize)>],
) -> Result<(), SwitchError> {
    let mut is_seen = vec![false; joined.len()];
    is_seen[number] = true;
    for &(side, neighbour) in &joined[number] {
        let mut reached = vec![neighbour];
        while let Some(station) = reached.pop() {
            if std::mem::replace(&mut is_seen[station], true) {
                continue;
            }
            if matches!(scenario.stations[station].kind, StationKind::Host(_)) {
                switch.add_static(Host::address(station), side)?;
            }
            reached.extend(joined[station].iter().map(|(_, next)| *next));
        }
    }
    Ok(())
}

/// Neighbours of each station: its sides, and the stations at their other ends.
pub(crate) fn joined(scenario: &Scenario) -> Vec<Vec<(Side, usize)>> {
    let mut joined = vec![Vec::new(); scenario.stations.len()];
    for cable in &scenario.cables {
        let [(a, side_a), (b, side_b)] = cable.ends;
        joined[a].push((side_a, b));
        joined[b].push((side_b, a));
    }
    joined
}
