//! Modes, and the policy that chooses one for each flow.

use crate::FlowKey;
use longhaul_wire::Prefix;
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use thiserror::Error;

/// Most rules of a policy; each is evaluated once per learnt flow.
pub const RULES_MAX: usize = 256;
/// The largest QPN.
const QPN_MAX: u32 = 0xff_ffff;
/// The largest DSCP.
const DSCP_MAX: u8 = 63;

/// Which node acknowledges the requests of a flow, and so the meaning of its completions; see
/// docs/semantics.md.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Mode {
    /// Each box acknowledges the packets that it has stored: the box near the requester has the
    /// message.
    #[default]
    Early,
    /// Only the far box acknowledges: the box near the responder has the message. Without a far box
    /// equal to [`Mode::Off`].
    Far,
    /// Boxes acknowledge all but the last packet of each message: the responder has the message.
    Tail,
    /// Boxes pass everything: the responder has the message.
    Off,
}

impl Mode {
    /// All modes.
    pub const ALL: [Mode; 4] = [Mode::Early, Mode::Far, Mode::Tail, Mode::Off];

    /// Lower-case name used in files, options and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Early => "early",
            Mode::Far => "far",
            Mode::Tail => "tail",
            Mode::Off => "off",
        }
    }

    /// Duty of a box in `role` for a flow in this mode.
    pub(crate) const fn duty(self, role: Role) -> Duty {
        match (self, role) {
            (Mode::Early, _) | (Mode::Far, Role::Far) => Duty::Acknowledge,
            (Mode::Tail, _) => Duty::AcknowledgeButLast,
            (Mode::Far, Role::Near) | (Mode::Off, _) => Duty::Pass,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Mode {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let known = Mode::ALL.into_iter().find(|mode| mode.name() == text);
        known.ok_or_else(|| PolicyError::Mode(text.to_owned()))
    }
}

/// Position of an accelerator in a pair, seen from the requesters that it serves.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Role {
    /// The requesters are on its LAN, the responders beyond the long path.
    #[default]
    Near,
    /// The requesters are beyond the long path, the responders on its LAN. Its side [`crate::LAN`]
    /// is still that of the requesters: in a chain of nodes it is mirrored.
    Far,
}

impl Role {
    /// Lower-case name for reports.
    pub const fn name(self) -> &'static str {
        match self {
            Role::Near => "near",
            Role::Far => "far",
        }
    }
}

/// What a box does with the requests of one flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Duty {
    /// Stores and acknowledges them.
    Acknowledge,
    /// Stores them, and acknowledges all but the last packet of each message.
    AcknowledgeButLast,
    /// Passes them.
    Pass,
}

/// Condition and mode of a policy rule. An absent field matches every flow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// The requester's address.
    pub source: Option<Prefix>,
    /// The responder's address.
    pub destination: Option<Prefix>,
    /// The responder's QPN: destination QP of the requests. 0 to 2^24 − 1.
    pub qpns: Option<RangeInclusive<u32>>,
    /// DSCP (0 to 63) of the flow's first request that the box sees. Two boxes see the same value
    /// only if the path between them preserves it.
    pub dscp: Option<u8>,
    /// The mode of matching flows.
    pub mode: Mode,
}

impl Rule {
    /// A rule without conditions.
    pub const fn new(mode: Mode) -> Self {
        Rule { source: None, destination: None, qpns: None, dscp: None, mode }
    }

    fn fits(&self, flow: &FlowKey, dscp: u8) -> bool {
        self.source.is_none_or(|prefix| prefix.contains(flow.requester))
            && self.destination.is_none_or(|prefix| prefix.contains(flow.responder))
            && self.qpns.as_ref().is_none_or(|qpns| qpns.contains(&flow.responder_qpn.get()))
            && self.dscp.is_none_or(|of_rule| of_rule == dscp)
    }

    /// True if every flow that matches `other` matches this rule.
    fn covers(&self, other: &Rule) -> bool {
        let prefix = |one: Option<Prefix>, other: Option<Prefix>| {
            one.is_none_or(|one| other.is_some_and(|other| one.covers(&other)))
        };
        let qpns = self.qpns.as_ref().is_none_or(|one| {
            let all = 0..=QPN_MAX;
            let other = other.qpns.as_ref().unwrap_or(&all);
            one.contains(other.start()) && one.contains(other.end())
        });
        prefix(self.source, other.source)
            && prefix(self.destination, other.destination)
            && qpns
            && self.dscp.is_none_or(|dscp| other.dscp == Some(dscp))
    }

    fn check(&self, number: usize) -> Result<(), PolicyError> {
        let fault = |why: String| Err(PolicyError::Rule { number, why });
        if self.source.is_none()
            && self.destination.is_none()
            && self.qpns.is_none()
            && self.dscp.is_none()
        {
            return fault(format!(
                "it has no condition; for what no rule fits, make '{}' the default mode",
                self.mode
            ));
        }
        if let (Some(source), Some(destination)) = (self.source, self.destination)
            && source.is_ipv4() != destination.is_ipv4()
        {
            return fault(format!(
                "no packet goes from {source} to {destination}: one is IPv4, the other IPv6"
            ));
        }
        match &self.qpns {
            Some(qpns) if *qpns.end() > QPN_MAX => {
                return fault(format!("QPN {} is more than {QPN_MAX}", qpns.end()));
            }
            Some(qpns) if qpns.is_empty() => {
                return fault(format!("no QPN lies between {} and {}", qpns.start(), qpns.end()));
            }
            _ => {}
        }
        match self.dscp {
            Some(dscp) if dscp > DSCP_MAX => fault(format!("DSCP {dscp} is more than {DSCP_MAX}")),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(source) = self.source {
            write!(f, "source {source} ")?;
        }
        if let Some(destination) = self.destination {
            write!(f, "destination {destination} ")?;
        }
        if let Some(qpns) = &self.qpns {
            write!(f, "qpn {}-{} ", qpns.start(), qpns.end())?;
        }
        if let Some(dscp) = self.dscp {
            write!(f, "dscp {dscp} ")?;
        }
        write!(f, "mode {}", self.mode)
    }
}

/// An ordered list of rules, of which the first match decides, and a default mode.
///
/// Equal policies have equal text, so that two boxes can compare theirs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Policy {
    rules: Vec<Rule>,
    default: Mode,
}

impl Policy {
    /// One mode for all flows.
    pub const fn all(mode: Mode) -> Self {
        Policy { rules: Vec::new(), default: mode }
    }

    /// A policy of `rules`, with the mode `default` for flows that match none.
    ///
    /// # Errors
    /// [`PolicyError`] for a rule that matches no flow or is shadowed by an earlier one, and for
    /// more than [`RULES_MAX`] rules.
    pub fn new(rules: Vec<Rule>, default: Mode) -> Result<Self, PolicyError> {
        if rules.len() > RULES_MAX {
            return Err(PolicyError::TooMany(rules.len()));
        }
        for (at, rule) in rules.iter().enumerate() {
            rule.check(at + 1)?;
            let Some(before) = rules[..at].iter().position(|before| before.covers(rule)) else {
                continue;
            };
            let (number, by) = (at + 1, before + 1);
            let why = if rules[before].mode == rule.mode {
                format!(
                    "rule {by} already says '{}' for all that it fits: take one of them out",
                    rule.mode
                )
            } else {
                let (one, other) = (rule.mode, rules[before].mode);
                format!(
                    "it says '{one}', but rule {by} fits all of that before it and says \
                     '{other}': put the narrower rule first"
                )
            };
            return Err(PolicyError::Rule { number, why });
        }
        Ok(Policy { rules, default })
    }

    /// The rules, in their order.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The mode of flows that match no rule.
    pub const fn default_mode(&self) -> Mode {
        self.default
    }

    /// The mode of `flow`, whose requests carry `dscp`.
    pub fn mode_of(&self, flow: &FlowKey, dscp: u8) -> Mode {
        self.rules.iter().find(|rule| rule.fits(flow, dscp)).map_or(self.default, |rule| rule.mode)
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for rule in &self.rules {
            write!(f, "{rule}; ")?;
        }
        write!(f, "default {}", self.default)
    }
}

/// Why a policy is invalid.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// No mode has this name.
    #[error("'{0}' is no mode: say early, far, tail or off")]
    Mode(String),
    /// A rule that is contradictory or has no effect.
    #[error("policy rule {number}: {why}")]
    Rule {
        /// Its position, counted from 1.
        number: usize,
        /// The problem and its remedy.
        why: String,
    },
    /// More rules than [`RULES_MAX`].
    #[error("{0} policy rules: {RULES_MAX} are the most")]
    TooMany(usize),
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_units::Qpn;

    fn flow(requester: &str, responder: &str, qpn: u32) -> FlowKey {
        FlowKey {
            requester: requester.parse().unwrap(),
            responder: responder.parse().unwrap(),
            responder_qpn: Qpn::new(qpn),
            vlan: 0,
        }
    }

    fn from(source: &str, mode: Mode) -> Rule {
        Rule { source: Some(source.parse().unwrap()), ..Rule::new(mode) }
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let rules = vec![
            from("10.1.0.0/16", Mode::Off),
            Rule { qpns: Some(100..=200), ..from("10.0.0.0/8", Mode::Tail) },
            Rule {
                destination: Some("fd00::/8".parse().unwrap()),
                dscp: Some(26),
                ..Rule::new(Mode::Far)
            },
        ];
        let policy = Policy::new(rules, Mode::Early).unwrap();
        for (requester, responder, qpn, dscp, mode) in [
            ("10.1.2.3", "10.9.9.9", 150, 0, Mode::Off),
            ("10.2.2.3", "10.9.9.9", 150, 0, Mode::Tail),
            ("10.2.2.3", "10.9.9.9", 201, 0, Mode::Early),
            ("fe80::1", "fd12::1", 1, 26, Mode::Far),
            ("fe80::1", "fd12::1", 1, 0, Mode::Early),
            ("::ffff:10.1.2.3", "fd12::1", 1, 0, Mode::Early),
        ] {
            assert_eq!(
                policy.mode_of(&flow(requester, responder, qpn), dscp),
                mode,
                "{requester} {qpn}"
            );
        }
        assert_eq!(
            policy.to_string(),
            "source 10.1.0.0/16 mode off; source 10.0.0.0/8 qpn 100-200 mode tail; \
             destination fd00::/8 dscp 26 mode far; default early"
        );
    }

    #[test]
    fn rules_that_can_never_decide_are_refused_by_number() {
        let v6 = Some("fd00::/8".parse().unwrap());
        for (rules, part) in [
            (vec![Rule::new(Mode::Off)], "rule 1: it has no condition"),
            (
                vec![from("10.0.0.0/8", Mode::Off), from("10.1.0.0/16", Mode::Tail)],
                "rule 2: it says 'tail', but rule 1 fits all of that before it and says 'off'",
            ),
            (
                vec![from("10.0.0.0/8", Mode::Off), from("10.0.0.0/8", Mode::Off)],
                "rule 2: rule 1 already says 'off'",
            ),
            (
                vec![Rule { destination: v6, ..from("10.0.0.0/8", Mode::Off) }],
                "one is IPv4, the other IPv6",
            ),
            (
                vec![Rule { dscp: Some(64), ..Rule::new(Mode::Off) }],
                "rule 1: DSCP 64 is more than 63",
            ),
            (
                vec![Rule { qpns: Some(RangeInclusive::new(7, 3)), ..Rule::new(Mode::Off) }],
                "no QPN lies between 7 and 3",
            ),
            (
                vec![Rule { qpns: Some(7..=1 << 24), ..Rule::new(Mode::Off) }],
                "is more than 16777215",
            ),
        ] {
            let error = Policy::new(rules, Mode::Early).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        assert!(
            Policy::new(
                vec![from("10.1.0.0/16", Mode::Tail), from("10.0.0.0/8", Mode::Off)],
                Mode::Far
            )
            .is_ok()
        );
        assert!(
            Policy::new(vec![Rule { dscp: Some(1), ..Rule::new(Mode::Off) }; 257], Mode::Early)
                .is_err()
        );
        assert_eq!(
            "earyl".parse::<Mode>().unwrap_err().to_string(),
            "'earyl' is no mode: say early, far, tail or off"
        );
    }
}
