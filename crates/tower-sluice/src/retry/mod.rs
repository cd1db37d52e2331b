//! retry
mod budget;
mod decision;
mod policy;
mod progress;
mod tower_policy;

pub use budget::{BudgetTerms, Payment, RetryBudget};
pub use decision::{GaveUp, Retry};
pub use policy::RetryPolicy;
pub use progress::Progress;
pub use tower_policy::Delay;
pub use tower_sluice_backoff::Draw;
