//! Campaigns of labs/campaigns that are part of the program.

use crate::labs::embedded;
use crate::problem::Problem;
use longhaul_campaign::Campaign;
use std::path::Path;

/// Names and files.
const PRESETS: &[(&str, &str)] =
    embedded!("campaigns", ".toml": "iown1-step1" "iown2-c1" "iown2-d1" "thesis-5.2" "storage");

/// The text of a campaign: of the file `path`, or of the preset of this name.
pub fn text(path: &Path) -> Result<String, Problem> {
    let named = path.to_str().and_then(|name| PRESETS.iter().find(|(known, _)| *known == name));
    match (named, std::fs::read_to_string(path)) {
        (Some((_, text)), Err(_)) => Ok((*text).to_owned()),
        (_, Ok(text)) => Ok(text),
        (None, Err(error)) if path.extension().is_none() && !path.exists() => {
            let names: Vec<&str> = PRESETS.iter().map(|(name, _)| *name).collect();
            let cause = format!("cannot read {}: {error}", path.display());
            Err(Problem::new(cause, format!("the presets are {}", names.join(", "))))
        }
        (None, Err(error)) => Err(Problem::io("read", path, &error)),
    }
}

/// All presets with their titles, one a line.
pub fn list() -> Result<String, Problem> {
    let longest = PRESETS.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let line = |(name, text): &(&str, &str)| {
        let campaign = Campaign::parse(name, text, false);
        let campaign = campaign.map_err(|error| Problem::plain(error.to_string()))?;
        Ok(format!("{name:longest$}  {}\n", campaign.experiment.title))
    };
    PRESETS.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::labs::Table;
    use crate::measure::executor;
    use longhaul_campaign::Site;

    #[test]
    fn each_preset_has_points_in_a_lab_and_on_hosts() {
        for (name, text) in PRESETS {
            let count = |is_reduced| {
                let campaign = Campaign::parse(name, text, is_reduced).expect(name);
                assert_eq!(campaign.experiment.name, *name);
                let executor = executor(&campaign, true).expect(name);
                campaign.points(&*executor).expect(name).len()
            };
            assert!((1..=24).contains(&count(true)) && count(false) >= count(true), "{name}");
            assert!(list().expect("a list").contains(name));
        }
    }

    #[test]
    fn each_preset_of_a_document_has_points_for_published_figures() {
        for (name, text) in PRESETS {
            let campaign = Campaign::parse(name, text, false).expect(name);
            if campaign.site != Site::Unnamed {
                continue;
            }
            assert!(campaign.experiment.document.is_some(), "{name}");
            let executor = executor(&campaign, true).expect(name);
            let points = campaign.points(&*executor).expect(name);
            for published in &campaign.published {
                let table = Table::named(&published.table).expect(name);
                let compared = published.compare(table.cells(), &[]);
                assert!(!compared.is_empty(), "{name}: no cell of {}", published.table);
                // The distance of a path of real fibre is a label that its user gives.
                let has = |key: &str, value: &longhaul_bench::Scalar| {
                    key == "distance_km" || points.iter().any(|p| p.place.get(key) == Some(value))
                };
                for one in compared {
                    assert!(
                        one.point.iter().all(|(key, value)| has(key, value)),
                        "{name}: {}",
                        one.point
                    );
                }
            }
        }
    }

    #[test]
    fn a_name_that_is_no_preset_lists_them() {
        let refused = text(Path::new("iown3")).unwrap_err().to_string();
        assert!(refused.contains("the presets are iown1-step1, iown2-c1"), "{refused}");
        let refused = text(Path::new("iown3.toml")).unwrap_err().to_string();
        assert!(!refused.contains("presets"), "{refused}");
    }
}
