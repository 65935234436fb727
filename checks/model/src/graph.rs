//! Exhaustive exploration of a model.

use stateright::{Checker, Model};
use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

/// The property that every run ends.
pub const ENDS: &str = "no state comes again";

/// Result of an exploration.
pub struct Explored {
    /// Number of distinct states.
    pub states: usize,
    /// Largest distance of a state from an initial one, in steps.
    pub depth: usize,
    /// Violated properties, each with a sequence of steps that violates it.
    pub violations: Vec<(&'static str, String)>,
}

/// Explores every order of events of `model`, until all are explored or a property is violated.
///
/// stateright does not detect cycles, so a separate search does if no property is violated.
pub fn explore<M>(model: M) -> Explored
where
    M: Model + Clone + Send + Sync + 'static,
    M::State: Hash + Clone + PartialEq + std::fmt::Debug + Send + Sync + 'static,
    M::Action: Clone + PartialEq + std::fmt::Debug + Send + Sync + 'static,
{
    let properties = stateright::HasDiscoveries::AnyFailures;
    let checked = model.clone().checker().finish_when(properties).spawn_bfs().join();
    let discoveries = checked.discoveries().into_iter();
    let mut violations: Vec<_> =
        discoveries.map(|(name, path)| (name, described(&path.into_actions()))).collect();
    if violations.is_empty() {
        violations.extend(cycle(&model).map(|steps| (ENDS, steps)));
    }
    Explored { states: checked.unique_state_count(), depth: checked.max_depth(), violations }
}

fn fingerprint(state: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}

/// Searches depth first: a step to a state on the current path closes a cycle. Returns its steps.
fn cycle<M: Model>(model: &M) -> Option<String>
where
    M::State: Hash,
    M::Action: Clone + std::fmt::Debug,
{
    struct Place<M: Model> {
        name: u64,
        left: Vec<(M::Action, M::State)>,
        /// The step last taken from here.
        step: Option<M::Action>,
    }
    let place =
        |name, state: &M::State| Place::<M> { name, left: model.next_steps(state), step: None };
    /// True while successors of the state are unexplored.
    type IsOpen = bool;
    let mut seen: HashMap<u64, IsOpen> = HashMap::new();
    let mut way = Vec::new();
    for first in model.init_states() {
        way.push(place(fingerprint(&first), &first));
        while let Some(last) = way.last_mut() {
            seen.insert(last.name, true);
            let Some((action, next)) = last.left.pop() else {
                seen.insert(last.name, false);
                way.pop();
                continue;
            };
            last.step = Some(action);
            let name = fingerprint(&next);
            match seen.get(&name) {
                Some(true) => {
                    let steps = way
                        .iter()
                        .skip_while(|place| place.name != name)
                        .flat_map(|place| &place.step);
                    return Some(described(steps));
                }
                Some(false) => {}
                None => way.push(place(name, &next)),
            }
        }
    }
    None
}

fn described<'a, A: std::fmt::Debug + 'a>(steps: impl IntoIterator<Item = &'a A>) -> String {
    steps.into_iter().map(|step| format!("{step:?}")).collect::<Vec<_>>().join(", ")
}
