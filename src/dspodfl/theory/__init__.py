"""The paper's formulas, and what they say of a study."""
