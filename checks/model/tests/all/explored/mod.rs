//! Assertions about an exploration.

use longhaul_model::explore;
use stateright::Model;
use std::fmt::Debug;
use std::hash::Hash;

/// Asserts that no order of events violates a property.
pub fn holds<M>(what: &str, model: M)
where
    M: Model + Clone + Send + Sync + 'static,
    M::State: Hash + Clone + PartialEq + Debug + Send + Sync + 'static,
    M::Action: Clone + PartialEq + Debug + Send + Sync + 'static,
{
    let explored = explore(model);
    println!("{what}: {} states, {} steps deep", explored.states, explored.depth);
    assert!(explored.violations.is_empty(), "{what}: {:#?}", explored.violations);
}

/// Asserts that some order of events violates a property.
pub fn finds<M>(what: &str, model: M)
where
    M: Model + Clone + Send + Sync + 'static,
    M::State: Hash + Clone + PartialEq + Debug + Send + Sync + 'static,
    M::Action: Clone + PartialEq + Debug + Send + Sync + 'static,
{
    let explored = explore(model);
    let found = explored.violations.first();
    let Some((property, steps)) = found else {
        panic!("{what}: not found among {} states", explored.states)
    };
    println!("{what}: not so that {property}: {steps}");
}
