use std::hash::{BuildHasher, RandomState};

/// The seed of a randomised test: printed, and taken from the environment variable `SLUICE_SEED` where that is set.
///
/// With nothing set it is derived from `name`, the same in every run, so that a test that passes once passes again
/// and two tests do not share a sequence. `SLUICE_SEED=random` draws a new one, for a search; `SLUICE_SEED=42` or
/// `SLUICE_SEED=0x2a` repeats a run. It is printed to standard error, which a test harness shows if the test fails.
///
/// ```
/// use tower_sluice_test::seed;
///
/// let seed = seed("a_million_calls");          // "a_million_calls: SLUICE_SEED=0x..."
/// // let mut rng = StdRng::seed_from_u64(seed);
/// ```
///
/// # Panics
/// If `SLUICE_SEED` is anything else.
pub fn seed(name: &str) -> u64 {
    let given = std::env::var("SLUICE_SEED").ok();
    let seed = choose(given.as_deref(), name).unwrap_or_else(|given| {
        panic!("SLUICE_SEED is {given:?}, but must be a number below 2^64, a hexadecimal one after 0x, or \"random\"")
    });
    eprintln!("{name}: SLUICE_SEED={seed:#x}");
    seed
}

fn choose<'a>(given: Option<&'a str>, name: &str) -> Result<u64, &'a str> {
    match given {
        None => Ok(fnv_1a(name.as_bytes())),
        // A new `RandomState` has new keys in every process.
        Some("random") => Ok(RandomState::new().hash_one(name)),
        Some(number) => {
            let parsed = match number.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16),
                None => number.parse(),
            };
            parsed.map_err(|_| number)
        }
    }
}

/// FNV-1a with its published 64-bit offset and prime: unlike std's hashers, the same in every version.
fn fnv_1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_gives_one_seed_for_ever() {
        // FNV's published test vectors.
        assert_eq!(choose(None, ""), Ok(0xcbf2_9ce4_8422_2325));
        assert_eq!(choose(None, "a"), Ok(0xaf63_dc4c_8601_ec8c));
        assert_eq!(choose(None, "foobar"), Ok(0x8594_4171_f739_67e8));
    }

    #[test]
    fn a_number_is_taken_as_it_is() {
        assert_eq!(choose(Some("42"), "name"), Ok(42));
        assert_eq!(choose(Some("0x2a"), "name"), Ok(42));
        assert_eq!(choose(Some("0xffffffffffffffff"), "name"), Ok(u64::MAX));
    }

    #[test]
    fn anything_else_is_refused() {
        for bad in ["", "x", "-1", "0x", "18446744073709551616", "Random"] {
            assert_eq!(choose(Some(bad), "name"), Err(bad));
        }
    }

    #[test]
    fn random_seeds_differ() {
        assert_ne!(choose(Some("random"), "name"), choose(Some("random"), "name"));
    }
}
