//! Several clients and servers: who talks to whom, and what the figures of pairs make of a point.

use crate::executor::Refusal;
use crate::grid::Settings;
use crate::parser::Values;
use longhaul_bench::{Point as Place, Scalar};

/// Settings of a path that are a topology.
pub(crate) const CLIENTS: &str = "clients";
pub(crate) const SERVERS: &str = "servers";

/// Numbers of clients and servers: 1-1, N-1, 1-N, or N-N, in which each client has its own server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Hosts of clients.
    pub clients: usize,
    /// Hosts of servers.
    pub servers: usize,
}

impl Topology {
    /// True if `key` is a setting of it.
    pub fn takes(key: &str) -> bool {
        [CLIENTS, SERVERS].contains(&key)
    }

    /// The topology of a path, which is 1-1 unless its settings are others.
    ///
    /// # Errors
    /// Settings that are no numbers, or that leave a host without a partner.
    pub fn of(path: &Settings) -> Result<Self, Refusal> {
        let number = |key: &str| match path.get(key).map(|value| &value.scalar) {
            None => Ok(1),
            Some(Scalar::Number(number))
                if (1.0..=1000.0).contains(number) && number.fract() == 0.0 =>
            {
                Ok(*number as usize)
            }
            Some(other) => Err(Refusal(format!("'{key}' = {other} is no number from 1 to 1000"))),
        };
        let topology = Topology { clients: number(CLIENTS)?, servers: number(SERVERS)? };
        let Topology { clients, servers } = topology;
        if clients == servers || clients == 1 || servers == 1 {
            return Ok(topology);
        }
        Err(Refusal(format!(
            "'{CLIENTS}' = {clients} with '{SERVERS}' = {servers}: use equal numbers, or 1 of one"
        )))
    }

    /// Number of pairs.
    pub fn pairs(self) -> usize {
        self.clients.max(self.servers)
    }

    /// Client and server of a pair.
    pub fn pair(self, number: usize) -> (usize, usize) {
        (number % self.clients, number % self.servers)
    }

    /// The parameters of results.
    pub(crate) fn parameters(path: &Settings) -> Result<Place, Refusal> {
        Topology::of(path)?;
        let own = path.iter().filter(|(key, _)| Topology::takes(key));
        Ok(own.fold(Place::new(), |place, (key, value)| place.with(key, value.scalar.clone())))
    }
}

/// True if the figure of a point is the sum of its pairs' figures.
pub(crate) fn is_sum(value: &str) -> bool {
    ["_bps", "_per_s", "_iops", "_pps", "_bytes", "_w", "_ws"]
        .iter()
        .any(|end| value.ends_with(end))
}

/// The figures of a point: sums of rates; of times the least minimum, the greatest maximum and
/// percentile, and the mean of the others. Peaks and deviations of pairs say nothing about the
/// point.
pub(crate) fn combined(pairs: &[Values]) -> Values {
    let [first, others @ ..] = pairs else { return Values::new() };
    if others.is_empty() {
        return first.clone();
    }
    let mut point = Values::new();
    for name in first.keys() {
        let figures: Vec<f64> = pairs.iter().filter_map(|pair| pair.get(name).copied()).collect();
        if figures.len() < pairs.len() || name.starts_with("peak_") || name.contains("_stdev") {
            continue;
        }
        let figure = if is_sum(name) {
            figures.iter().sum()
        } else if name.contains("_min") {
            figures.iter().copied().fold(f64::INFINITY, f64::min)
        } else if name.contains("_max") || name.contains("_p9") {
            figures.iter().copied().fold(f64::NEG_INFINITY, f64::max)
        } else {
            figures.iter().sum::<f64>() / figures.len() as f64
        };
        point.insert(name.clone(), figure);
    }
    point
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grid::Value;

    fn topology(clients: f64, servers: f64) -> Result<Topology, Refusal> {
        let value = |number: f64| Value { text: number.to_string(), scalar: number.into() };
        let settings = [(CLIENTS, clients), (SERVERS, servers)];
        Topology::of(
            &settings.map(|(key, number)| (key.to_owned(), value(number))).into_iter().collect(),
        )
    }

    #[test]
    fn each_host_has_a_partner() {
        assert_eq!(Topology::of(&Settings::default()).unwrap().pairs(), 1);
        let pairs = |clients, servers| {
            let topology = topology(clients, servers).unwrap();
            (0..topology.pairs()).map(|pair| topology.pair(pair)).collect::<Vec<_>>()
        };
        assert_eq!(pairs(3.0, 1.0), [(0, 0), (1, 0), (2, 0)]);
        assert_eq!(pairs(1.0, 2.0), [(0, 0), (0, 1)]);
        assert_eq!(pairs(2.0, 2.0), [(0, 0), (1, 1)]);
        for (clients, servers, part) in [
            (3.0, 2.0, "'clients' = 3 with 'servers' = 2: use equal numbers"),
            (0.0, 1.0, "'clients' = 0 is no number"),
            (1.0, 1.5, "'servers' = 1.5 is no number"),
        ] {
            let refused = topology(clients, servers).unwrap_err().to_string();
            assert!(refused.starts_with(part), "{refused}");
        }
    }

    #[test]
    fn rates_add_up_and_times_do_not() {
        let pair = |rate: f64, time: f64| -> Values {
            let names =
                ["goodput_bps", "peak_bps", "latency_min_ns", "latency_p99_ns", "latency_mean_ns"];
            let figures = [rate, rate, time, time * 3.0, time * 2.0];
            names.map(str::to_owned).into_iter().zip(figures).collect()
        };
        let one = pair(1e9, 10.0);
        assert_eq!(combined(std::slice::from_ref(&one)), one);
        let mut both = combined(&[one, pair(2e9, 30.0)]);
        assert_eq!(both.remove("goodput_bps"), Some(3e9));
        assert_eq!(both.remove("latency_min_ns"), Some(10.0));
        assert_eq!(both.remove("latency_p99_ns"), Some(90.0));
        assert_eq!(both.remove("latency_mean_ns"), Some(40.0));
        assert!(both.is_empty(), "{both:?}");
        assert!(combined(&[]).is_empty());
    }
}
